"""Optimisers that rules are derived for: their steps, and what weight decay does."""

from __future__ import annotations

import pytest
import torch

from ..internals import FAMILIES

torch.manual_seed(0)
START = torch.randn(6, 4, dtype=torch.float64)
GRADIENTS = [torch.randn(6, 4, dtype=torch.float64) for _ in range(3)]


def trained(name, lr, steps=3, **options):
    """A matrix after some steps."""
    p = torch.nn.Parameter(START.clone())
    group = {"params": [p], "lr": lr, "is_matrix": True, "split": None, **options}
    optimiser = FAMILIES[name].make([group])
    for gradient in GRADIENTS[:steps]:
        p.grad = gradient.clone()
        optimiser.step()
    return p.detach()


@pytest.mark.parametrize("name", ["muonh", "adamh"])
def test_sphere_keeps_the_norm(name):
    moved = trained(name, lr=0.1)
    assert float(moved.norm()) == pytest.approx(float(START.norm()))
    assert float((moved - START).norm()) > 0.05 * float(START.norm())


@pytest.mark.parametrize("name", ["muonh", "adamh"])
def test_weight_decay_on_a_sphere_acts_to_second_order_only(name):
    """Half the learning rate makes the change by decay a quarter; without the sphere it
    is halved.
    """

    def changes(of, lr):
        return float((trained(of, lr, weight_decay=1.0) - trained(of, lr)).norm())

    ratio = changes(name, 1e-3) / changes(name, 5e-4)
    assert ratio == pytest.approx(4.0, rel=0.02)
    assert changes("muon", 1e-3) / changes("muon", 5e-4) == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("name", ["muon", "muonh"])
def test_parts_of_a_fused_matrix_move_like_matrices_of_their_own(name):
    moved = trained(name, lr=0.1, split=[2, 4])
    for rows in (slice(0, 2), slice(2, 6)):
        p = torch.nn.Parameter(START[rows].clone())
        group = {"params": [p], "lr": 0.1, "is_matrix": True, "split": None}
        optimiser = FAMILIES[name].make([group])
        for gradient in GRADIENTS:
            p.grad = gradient[rows].clone()
            optimiser.step()
        torch.testing.assert_close(moved[rows], p.detach())


def test_muon_is_that_of_torch():
    """The first step is the orthogonal factor of the gradient, which the polynomial of
    `torch.optim.Muon` approximates.
    """
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this PyTorch has no Muon")
    p = torch.nn.Parameter(START.clone())
    optimiser = torch.optim.Muon([p], lr=0.1, weight_decay=0.0)
    p.grad = GRADIENTS[0].clone()
    optimiser.step()
    expected = trained("muon", 0.1, steps=1) - START
    found = p.detach() - START
    cosine = float((found * expected).sum() / found.norm() / expected.norm())
    assert cosine > 0.95
    assert 0.7 < float(found.norm() / expected.norm()) < 1.3


def test_sign_is_the_first_step_of_lion_and_adam():
    for name in ("sign", "lion", "adamw"):
        expected = START - 0.1 * GRADIENTS[0].sign()
        torch.testing.assert_close(trained(name, 0.1, steps=1), expected)


def test_mixed_groups():
    """Matrices get Muon, others AdamW."""
    matrix, vector = (torch.nn.Parameter(x.clone()) for x in (START, START[0]))
    optimiser = FAMILIES["muon"].make(
        [
            {"params": [matrix], "lr": 0.1, "is_matrix": True},
            {"params": [vector], "lr": 0.1, "is_matrix": False},
        ]
    )
    matrix.grad, vector.grad = GRADIENTS[0].clone(), GRADIENTS[0][0].clone()
    optimiser.step()
    torch.testing.assert_close(matrix.detach(), trained("muon", 0.1, steps=1))
    expected = START[0] - 0.1 * GRADIENTS[0][0].sign()
    torch.testing.assert_close(vector.detach(), expected)
