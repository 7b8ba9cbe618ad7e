"""Steps are bounded, schedules are functions, and errors name an argument as it was
written.
"""

import pytest

import netsor as ns

from .test_arguments import TINY, sweep

n = ns.Width("n")


def loss():
    return ns.mean_dot(ns.gaussian(n), ns.tanh(ns.weight(n, n) @ ns.gaussian(n))) ** 2


@pytest.mark.parametrize("steps", [10**8, 257, 0, None, 2.5, True])
def test_steps_are_bounded(steps):
    message = f"steps={steps} must be an integer from 1 to 256"
    with pytest.raises(ValueError, match=f"^train: {message}"):
        ns.train(loss(), loss(), ns.optim.SGD(0.1), steps)
    with pytest.raises(ValueError, match=f"^{message}"):
        sweep(steps=steps)
    with pytest.raises(ValueError, match=f"^{message}"):
        ns.coord_check(TINY, steps=steps, progress=False)


@pytest.mark.parametrize("schedule", [[1.0, 0.5], 2.0, "cosine", True])
def test_schedule_is_a_function(schedule):
    with pytest.raises(
        ValueError, match=r"^train: schedule=.* must be a function of the step"
    ):
        ns.train(loss(), loss(), ns.optim.SGD(0.1), 2, schedule=schedule)
    with pytest.raises(
        ValueError, match=r"^schedule=.* must be a function of the step"
    ):
        sweep(schedule=schedule)


@pytest.mark.parametrize("factor", [None, "x", -1.0, float("nan"), [1.0]])
def test_schedule_returns_a_factor(factor):
    for call in (
        lambda: ns.train(
            loss(), loss(), ns.optim.SGD(0.1), 2, schedule=lambda t: factor
        ),
        lambda: sweep(schedule=lambda t: factor),
    ):
        with pytest.raises(ValueError, match=r"(lr_factor|schedule)=.* must be a"):
            call()


@pytest.mark.parametrize(
    "of", [lambda: 0, object(), None, [0.5], 1.5, float("nan"), True]
)
def test_quantity_of_the_width_needed_is_a_name_or_a_quantile(of):
    program = ns.Program(
        ns.dot(ns.gaussian(n), ns.tanh(ns.weight(n, n) @ ns.gaussian(n)))
    )
    with pytest.raises(
        ValueError,
        match=r"^of=.* must be 'kl', 'tv', 'variance', 'kurtosis', or a quantile",
    ):
        ns.width_needed(program, 0.1, of)


@pytest.mark.parametrize("name", ["optimiser", "optimizer"])
def test_errors_name_the_spelling_that_was_written(name):
    for study in (ns.coord_check, ns.transfer):
        with pytest.raises(
            ValueError, match=f"^{name}='x' must be 'sgd', 'muon', 'adam' or 'lion'"
        ):
            study(TINY, **{name: "x"})
