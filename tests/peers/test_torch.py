"""PyTorch as a backend: the law of numpy, the same bits from one seed."""

from functools import partial

import pytest

from netsor.engine import conditional
from netsor.engine.backends import NoDeviceError, choose

from ..engine.backend_cases import CASES, LEVEL, smallest_p

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers
TORCH = {"backend": "torch", "device": "cpu"}


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_torch_has_the_law_of_numpy(case, precision):
    assert smallest_p(case, **TORCH, precision=precision) > LEVEL


def test_the_same_seed_gives_the_same_bits():
    net, widths = CASES["transformer"]
    run = partial(conditional, net.outputs, widths, seed=5, progress=False, backend=choose(**TORCH))
    one, two, more = run(draws=300), run(draws=300), run(draws=1000)
    assert one.cov.tobytes() == two.cov.tobytes() == more.cov[:300].tobytes()


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(NoDeviceError, match=r"device='cuda:77': PyTorch sees \d+ CUDA devices here"):
        choose("torch", "cuda:77")
