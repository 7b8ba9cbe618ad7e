"""PyTorch as a backend: the law of numpy, the same bits from one seed."""

from functools import partial

import pytest

from netsor.engine import conditional
from netsor.engine._run import run
from netsor.engine.backends import NoDeviceError, _torch, choose

from ..engine.backend_cases import CASES, LEVEL, assert_same, random_plans, smallest_p

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers
TORCH = {"backend": "torch", "device": "cpu"}


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_torch_has_the_law_of_numpy(case, precision):
    assert smallest_p(case, **TORCH, precision=precision) > LEVEL


def test_torch_computes_what_numpy_computes():
    """Random programs, on the same random numbers."""
    from array_api_compat import torch as xp

    backend, compared = choose(**TORCH), 0
    for plan, drawn, found in random_plans(range(40)):
        work = _torch._Block(backend, 0, 0, 16, torch, xp)
        with torch.no_grad():
            made = run(plan, lambda step, drawn=drawn: torch.tensor(drawn[step]), work.constant, work.compute)
        assert_same(found, [array.numpy() for array in made])
        compared += 1
    assert compared > 40


def test_the_same_seed_gives_the_same_bits():
    net, widths = CASES["transformer"]
    run = partial(conditional, net.outputs, widths, seed=5, progress=False, backend=choose(**TORCH))
    one, two, more = run(draws=300), run(draws=300), run(draws=1000)
    assert one.cov.tobytes() == two.cov.tobytes() == more.cov[:300].tobytes()


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(NoDeviceError, match=r"device='cuda:77': PyTorch sees \d+ CUDA devices here"):
        choose("torch", "cuda:77")
