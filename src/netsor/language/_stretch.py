"""The rule "llama3" for rotary frequencies: those too low for the context that a model was made for are lowered."""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Stretch(NamedTuple):
    """Low frequencies of rotary positions are divided by `factor`, high ones stay.

    A frequency θ makes c = θ · original / 2π turns in the original context. It stays if c > high, becomes θ/factor if c
    < low, and goes linearly in c from one to the other between.

    Parameters
    ----------
    factor : float
        What low frequencies are divided by.
    low : float
        Turns below which a frequency is low.
    high : float
        Turns above which a frequency is high.
    original : float
        The length of the original context.

    Examples
    --------
    >>> stretch = ns.models.Stretch(factor=8.0, low=1.0, high=4.0, original=8192.0)  # of Llama 3.1
    >>> print(stretch.of(np.array([1.0, 1e-4])))
    [1.00e+00 1.25e-05]
    """

    factor: float
    low: float
    high: float
    original: float

    def of(self, theta: Any) -> Any:
        """The frequencies that take the place of θ.

        Parameters
        ----------
        theta : numpy.ndarray
            Frequencies.

        Returns
        -------
        numpy.ndarray
            In the same shape.

        Examples
        --------
        >>> ns.models.Stretch(2.0, 1.0, 4.0, 100.0).of(np.array([0.01]))
        array([0.005])
        """
        turns = theta * self.original / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clip(0.0, 1.0)
        return theta * (kept + (1.0 - kept) / self.factor)
