"""The order of coordinates in PyTorch modules: which are turned in pairs, grouped, repeated, and given numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from .literal import outputs
from .orders import ORDERS

IDS = torch.tensor([[3, 7, 7, 1]])


@pytest.mark.parametrize("name", ORDERS)
def test_a_program_with_the_weights_of_a_module_computes_what_it_does(name):
    for real, ours in outputs(ORDERS[name], (IDS,)):
        assert real.shape == ours.shape
        np.testing.assert_allclose(ours, real, rtol=0, atol=1e-6 * np.abs(real).max())
