"""The six networks whose learning rates `bench/learning_rates.py` sweeps, as functions
of the width: those of the tests, with two layers each.

The file of each rule in `bench/rules` is written by

    netsor parametrise bench/networks.py:nanogpt --out bench/rules/mup_nanogpt.py

and so on; `vit` needs `--batch images_and_classes`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.peers import mup_modules

LAYERS = 2
WORDS = mup_modules.WORDS
CLASSES = 10
PIXELS = (3, 8, 8)  # of an image: colours, rows, columns

images_and_classes = mup_modules.images()  # the batch that the ViT's rule is derived on


def nanogpt(width):
    return mup_modules.NanoGPT(width, LAYERS)


def llama(width):
    return mup_modules.llama(width, LAYERS)


def experts(width):
    return mup_modules.experts(width, LAYERS)


def mamba2(width):
    return mup_modules.mamba2(width, LAYERS)


def latent_attention(width):
    return mup_modules.latent_attention(width, LAYERS)


def vit(width):
    return mup_modules.ViT(width, LAYERS, classes=CLASSES)


# nanoGPT and the ViT first: their best rates moved in an earlier sweep.
NETWORKS = {
    "nanogpt": nanogpt,
    "vit": vit,
    "llama": llama,
    "experts": experts,
    "mamba2": mamba2,
    "latent_attention": latent_attention,
}
