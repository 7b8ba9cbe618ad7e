"""Modules with convolutions and pooling, and image models of transformers, against
PyTorch.

On the weights of a module its program returns what the module returns; the law of its
output, and of the gradient of every parameter, is that of real initialisations (two
samples, Kolmogorov–Smirnov, level 1e-4 for all quantities of a module together; seeds
are fixed).
"""

from __future__ import annotations

import math
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
import transformers
from scipy import stats
from torch import nn
from torch.nn import functional
from transformers.models.whisper.modeling_whisper import WhisperEncoder

import netsor as ns
from tests.internals import ParameterDraws as Draws
from tests.internals import _reader

from . import literal

LEVEL = 1e-4
REAL, OURS = 300, 1200
CLASSES = 5
ROUNDING = 1e-12  # squared gradients below it are rounding


def pixels(*shape):
    """Given pixels, in single precision as images of modules are."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


# Networks written by hand


class LeNet(nn.Sequential):
    """Images are flattened channel by channel, before a nonlinearity and a matrix."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 6, 3, padding=1),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 8, 3),
            nn.Flatten(),
            nn.Tanh(),
            nn.Linear(8 * 2 * 2, 16),
            nn.ReLU(),
            nn.Linear(16, CLASSES),
        )


class Plain(nn.Sequential):
    """Strides, dilation, "same" padding, the largest of a window, global averages."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, 3, padding="same", bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
            nn.Conv2d(8, 12, (3, 2), stride=(1, 2), padding=(2, 0), dilation=(2, 1)),
            nn.GELU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(12, CLASSES),
        )


class Mobile(nn.Module):
    """Depthwise convolutions, bounded activations, gates of channels."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.out = nn.Conv2d(8, 12, 1)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x):
        x = functional.relu6(self.stem(x))
        h = functional.hardswish(self.depthwise(x))
        pooled = functional.adaptive_avg_pool2d(h, 1)
        x = x + h * torch.sigmoid(self.excite(functional.silu(self.squeeze(pooled))))
        return self.head(self.out(x).mean((2, 3)))


class Bottleneck(nn.Module):
    """A block of ResNeXt: groups, batch norm, and a shortcut with a stride."""

    def __init__(self, into, out, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(into, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, stride, padding=1, groups=2, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.conv3, self.bn3 = nn.Conv2d(8, out, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1 or into != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(y)))))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNeXt(nn.Module):
    """As in torchvision, with the initialisation of torchvision."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(Bottleneck(8, 8, 1))
        self.layer2 = nn.Sequential(Bottleneck(8, 12, 2), Bottleneck(12, 12, 1))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(12, CLASSES)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out")

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(x, 1))


class OfBatch(nn.Sequential):
    """Batch norm by the statistics of the batch, as in training."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8, track_running_stats=False),
            nn.ReLU(),
            nn.Conv2d(8, 8, 2),
            nn.InstanceNorm2d(8, affine=True),
            nn.SiLU(),
            nn.Conv2d(8, 12, 2),
            nn.GroupNorm(3, 12),
            nn.AdaptiveMaxPool2d(2),
            nn.Flatten(),
            nn.Linear(48, CLASSES),
        )


class Audio(nn.Module):
    """Convolutions of sequences, in the manner of Whisper, and windows that move."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv1d(8, 12, 3, stride=2, padding=1)
        self.positions = nn.Parameter(torch.randn(12, 4))
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x):
        x = functional.gelu(self.conv2(functional.gelu(self.conv1(x))))
        x = (x + self.positions).roll(1, -1)
        first, second = x.unfold(-1, 2, 2).unbind(-1)
        x = functional.interpolate(torch.maximum(first, second), 5, mode="linear")
        return self.head(x.transpose(1, 2).mean(1))


class Volume(nn.Sequential):
    """Three axes of positions, and a window cut by a reshape."""

    def __init__(self):
        super().__init__(
            nn.Conv3d(2, 4, 2),
            nn.ELU(),
            nn.MaxPool3d(2),
            nn.Conv3d(4, 6, (2, 1, 1)),
            nn.Flatten(),
            nn.Dropout(),
            nn.Linear(6, CLASSES),
        )


class Windows(nn.Module):
    """Windows cut by reshapes of channels-first tensors, as in MobileViT."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.matrix = nn.Linear(8, 8)
        self.head = nn.Conv2d(8, CLASSES, 2)

    def forward(self, x):
        x = self.stem(x)
        batch, channels, rows, columns = x.shape
        windows = x.reshape(batch * channels * rows // 2, 2, columns // 2, 2)
        windows = windows.transpose(1, 2).reshape(batch, channels, -1, 4)
        y = torch.tanh(self.matrix(windows.permute(0, 3, 2, 1)))
        y = y.permute(0, 3, 2, 1).reshape(-1, columns // 2, 2, 2).transpose(1, 2)
        return self.head(y.reshape(x.shape)).amax((2, 3))


NETWORKS = {
    "LeNet": (LeNet, (1, 1, 8, 8)),
    "Plain": (Plain, (1, 3, 8, 8)),
    "Mobile": (Mobile, (1, 3, 8, 8)),
    "ResNeXt": (ResNeXt, (1, 3, 10, 10)),
    "OfBatch": (OfBatch, (2, 3, 6, 6)),
    "Audio": (Audio, (1, 3, 8)),
    "Volume": (Volume, (1, 2, 5, 4, 4)),
    "Windows": (Windows, (1, 3, 4, 4)),
}


def deviation(build, x):
    """The largest error of the program on the weights of a module, and the largest
    number of its output.
    """
    ((real, ours),) = literal.outputs(build, (x,))
    return np.abs(real - ours).max(), np.abs(real).max()


@pytest.mark.parametrize("name", NETWORKS)
def test_program_of_network_matches_module(name):
    build, shape = NETWORKS[name]
    error, largest = deviation(build, pixels(*shape))
    assert error < 1e-6 * largest


# Laws


def _squared_gradient(loss, value):
    """The squared norm of the gradient of a loss by vectors, or by scalars."""
    if isinstance(value, ns.Scalar):
        return (ns.grad(loss, value) ** 2).sum()
    gradient = ns.grad(loss, value).reshape(-1, 1)
    return ns.mean_dot(gradient, gradient).sum()


def _gradients(loss, draws):
    """The squared norms of the gradients of all parameters that are random, by name."""
    squares = {}
    for name, parts in draws._matrices.items():
        weights = [drawn.weight for drawn in parts.values()]
        squares[name] = sum(ns.grad_norm(loss, each) for each in weights)
    vectors = {name: known.drawn for name, known in draws._rows.items()}
    for name, by_span in draws._columns.items():
        vectors[name] = [x for columns in by_span.values() for x in columns.drawn]
    for name, drawn in vectors.items():
        squares[name] = sum(
            _squared_gradient(loss, draws.twins.get(x, x)) for x in drawn
        )
    return squares


def program_draws(build, x):
    """Draws of an output, the loss (half the mean square), and of all gradients."""
    created = []

    def record(*arguments, **options):
        created.append(Draws(*arguments, **options))
        return created[-1]

    with mock.patch.object(_reader, "Draws", record):
        net = ns.torch.program(build, (x,))
    output = net.outputs[0].reshape(-1)
    column = output[:, None]
    loss = 0.5 * ns.mean_dot(column, column).mean()
    squares = _gradients(loss, created[0])
    names = sorted(squares)
    program = ns.Program((output[0], loss, *(squares[name] for name in names)))
    draws = program.draw(draws=OURS, rng=3)
    return names, np.stack([np.ravel(column) for column in draws], axis=1)


def real_draws(build, x, names):
    """The same numbers of real initialisations."""
    torch.manual_seed(4)
    rows = []
    for _ in range(REAL):
        module = build().double().eval()
        output = module(x.double())
        loss = 0.5 * output.square().mean()
        loss.backward()
        parameters = dict(module.named_parameters())
        squares = [float(parameters[name].grad.square().sum()) for name in names]
        rows.append([output.ravel()[0].item(), loss.item(), *squares])
    return np.array(rows)


def assert_same_law(build, x):
    """Two samples of the output, the loss and all gradients agree."""
    names, ours = program_draws(build, x)
    real = real_draws(build, x, names)
    p = {}
    for name, a, b in zip(["output", "loss", *names], ours.T, real.T, strict=True):
        if (
            max(a.max(), b.max()) < ROUNDING
        ):  # of a bias before a norm, or of keys: it is 0
            continue
        p[name] = stats.ks_2samp(a, b, method="asymp").pvalue
    print(f"smallest p {min(p.values()):.2g} of {len(p)}")
    assert min(p.values()) > LEVEL / len(p), p


def _gaussian(build):
    """A module whose parameters are Gaussian, so that its law is exact.

    Norms have gains of 1.
    """
    module = build()
    for name, p in module.named_parameters():
        if name.endswith("attention_biases"):  # 0, as LeViT has them
            continue
        if p.ndim > 1 and p[0].numel() > 1:
            nn.init.normal_(p, std=math.sqrt(2 / p[0].numel()))
        elif name.endswith("bias"):
            nn.init.normal_(p, std=0.2)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_law_of_network_and_gradients_is_that_of_initialisations(name):
    build, shape = NETWORKS[name]
    assert_same_law(partial(_gaussian, build), pixels(*shape))


# Image models of transformers, and the encoder of Whisper

VIT = {
    "image_size": 8,
    "patch_size": 4,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
TEXT = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
SWIN = {
    "image_size": 32,
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
STAGES = {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [2, 1]}
PYRAMID = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "hidden_sizes": [16, 32],
    "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 2],
    "strides": [4, 2],
}
OVERLAPPING = PYRAMID | {"patch_sizes": [7, 3], "sr_ratios": [2, 1]}
# the name of a class, the fields of its configuration, and the size of its images
MODELS = {
    "ViT": (VIT, 8),
    "DeiT": (VIT, 8),
    "Beit": (VIT | {"use_relative_position_bias": True}, 8),
    "Data2VecVision": (VIT | {"use_shared_relative_position_bias": True}, 8),
    "Dinov2": (VIT | {"mlp_ratio": 2}, 8),
    "Dinov2WithRegisters": (VIT | {"mlp_ratio": 2}, 8),
    "IJepa": (VIT, 8),
    "ViTMSN": (VIT, 8),
    "Siglip": ({"vision_config": VIT, "text_config": TEXT}, 8),
    "CLIP": ({"vision_config": VIT, "text_config": TEXT}, 8),
    "ResNet": (
        {
            "embedding_size": 8,
            "hidden_sizes": [8, 16],
            "depths": [2, 1],
            "layer_type": "basic",
        },
        16,
    ),
    "RegNet": (
        {
            "embedding_size": 8,
            "hidden_sizes": [8, 16],
            "depths": [1, 2],
            "groups_width": 4,
        },
        16,
    ),
    "ConvNext": (STAGES, 16),
    "ConvNextV2": (STAGES, 16),
    "Swin": (SWIN, 32),
    "Swinv2": (SWIN, 32),
    "DonutSwin": (SWIN, 32),
    "MobileNetV1": ({"depth_multiplier": 0.25}, 32),
    "MobileNetV2": ({"depth_multiplier": 0.25}, 32),
    "MobileViT": (
        {
            "image_size": 64,
            "hidden_sizes": [16, 16, 16],
            "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 16],
            "num_attention_heads": 2,
        },
        64,
    ),
    "FocalNet": (
        {
            "image_size": 16,
            "embed_dim": 16,
            "hidden_sizes": [16, 32],
            "depths": [1, 1],
            "focal_levels": [2, 2],
            "focal_windows": [3, 3],
        },
        16,
    ),
    "Hiera": (
        {
            "image_size": [32, 32],
            "embed_dim": 8,
            "depths": [1, 1],
            "num_heads": [1, 2],
            "num_query_pool": 1,
            "masked_unit_size": [4, 4],
            "mlp_ratio": 2.0,
        },
        32,
    ),
    "Levit": (
        {
            "image_size": 32,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 2, 2],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
            "down_ops": [["Subsample", 8, 2, 4, 2, 2], ["Subsample", 8, 3, 4, 2, 2]],
        },
        32,
    ),
    "PoolFormer": (
        PYRAMID | {"patch_sizes": [7, 3], "padding": [2, 1]},
        16,
    ),
    "Pvt": (
        PYRAMID
        | {
            "image_size": 32,
            "sequence_reduction_ratios": [2, 1],
            "patch_sizes": [4, 2],
        },
        32,
    ),
    "PvtV2": (OVERLAPPING | {"image_size": 32}, 32),
    "Segformer": (OVERLAPPING, 16),
    "SwiftFormer": (
        {"image_size": 32, "depths": [1, 1, 1, 1], "embed_dims": [8, 8, 16, 16]},
        32,
    ),
    "TextNet": ({"stem_out_channels": 8, "hidden_sizes": [8, 8, 16, 16, 16]}, 32),
}
# more than two seconds of processor time
LONG = ("Levit", "MobileNetV1", "MobileNetV2", "MobileViT", "Swinv2", "TextNet")


class Classes(nn.Module):
    """The logits of a model of transformers that classifies images."""

    def __init__(self, name):
        super().__init__()
        fields, _ = MODELS[name]
        config = getattr(transformers, f"{name}Config")(num_labels=CLASSES, **fields)
        config._attn_implementation = "eager"
        self.model = getattr(transformers, f"{name}ForImageClassification")(config)

    def forward(self, x):
        return self.model(x).logits


def classifier(name):
    """A function that creates a model, and its image."""
    size = MODELS[name][1]
    return partial(_gaussian, partial(Classes, name)), pixels(1, 3, size, size)


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[pytest.mark.slow] * (x in LONG)) for x in MODELS],
)
def test_program_of_image_model_matches_module(name):
    error, largest = deviation(*classifier(name))
    assert largest > 1e-10  # with evaluation statistics deep models shrink their images
    assert error < 1e-6 * largest


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ResNet", "ConvNextV2", "Swin", "Beit", "FocalNet"])
def test_law_of_image_model_and_gradients_is_that_of_initialisations(name):
    assert_same_law(*classifier(name))


class Encoder(nn.Module):
    """The encoder of Whisper, on frames of a spectrogram."""

    def __init__(self):
        super().__init__()
        config = transformers.WhisperConfig(
            num_mel_bins=6,
            max_source_positions=8,
            encoder_layers=1,
            d_model=32,
            encoder_attention_heads=4,
            encoder_ffn_dim=48,
            attn_implementation="eager",
        )
        self.model = WhisperEncoder(config)

    def forward(self, x):
        return self.model(x).last_hidden_state


def test_program_of_whisper_encoder_matches_module():
    error, largest = deviation(Encoder, pixels(1, 6, 16))
    assert error < 1e-6 * largest


# The initialisation of PyTorch, audits, refusals


def test_uniform_kernels_are_exact_of_pixels_and_gaussian_of_vectors():
    net = ns.torch.program(LeNet, (pixels(1, 1, 8, 8),))
    assert net.law(draws=10).status == "same limit"
    (note,) = net.law(draws=10).notes
    assert "3.weight" in note
    assert "0.weight" not in note
    assert "a sum over 16 to 54 of them" in note


class Normalised(nn.Conv2d):
    """A kernel that is normalised (weight standardisation)."""

    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return functional.conv2d(x, weight, self.bias)


class OverPositions(nn.Module):
    """A convolution along the coordinates of vectors."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Linear(4, 2000)
        self.conv = nn.Conv1d(3, 3, 5)

    def forward(self, x):
        return self.conv(torch.tanh(self.matrix(x)))


class Wide(nn.Module):
    """Two outputs for each channel of a depthwise convolution."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 32, 1)
        self.conv = nn.Conv2d(32, 64, 3, groups=32)

    def forward(self, x):
        return self.conv(self.first(x))


@pytest.mark.parametrize(
    ("build", "shape", "message"),
    [
        (
            lambda: nn.Sequential(nn.Conv2d(3, 32, 1), Normalised(32, 32, 3)),
            (1, 3, 4, 4),
            "the kernel must be a parameter itself, and no function of one",
        ),
        (OverPositions, (1, 3, 4), "along the coordinates of vectors"),
        (Wide, (1, 3, 4, 4), "2 outputs for each channel, which are interleaved"),
    ],
)
def test_convolution_that_is_not_read_is_refused(build, shape, message):
    with pytest.raises(ns.torch.UnsupportedError, match=message):
        ns.torch.program(build, (pixels(*shape),))


class Windows(nn.Module):
    """Windows of an image with zeros around it, and a function before or after."""

    def __init__(self, f, first):
        super().__init__()
        self.image = nn.Conv2d(1, 3, 3)
        self.out = nn.Linear(3 * 9, CLASSES)
        self.f = f
        self.first = first

    def forward(self, x):
        x = self.image(x)
        if self.first:
            return self.out(functional.unfold(self.f(x), 3, padding=1).mT)
        return self.out(self.f(functional.unfold(x, 3, padding=1)).mT)


def test_function_of_zeros_beside_an_image():
    """relu(0) = 0, so windows and the function change places; a sigmoid of 0 is 1/2."""
    x = pixels(1, 1, 4, 4)
    variances = []
    for first in (True, False):
        net = ns.torch.program(lambda first=first: Windows(torch.relu, first), x)
        variances.append(net.law(draws=50, seed=0).var())
    np.testing.assert_allclose(*variances, rtol=1e-12)
    with pytest.raises(
        ns.torch.UnsupportedError, match="not 0 at 0, of zeros beside images"
    ):
        ns.torch.program(lambda: Windows(torch.sigmoid, first=False), x)
