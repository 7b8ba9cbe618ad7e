"""The error of laws."""

from ..language._where import PlacedError


class LawError(PlacedError):
    """What a law refuses: a question that it cannot answer, or numbers that make no law. It is a ValueError.

    Parameters
    ----------
    operation : str
        The method or function that refuses.
    problem : str
        The argument, its value and what is allowed.

    Examples
    --------
    >>> ns.paper.layer().law(n=ns.inf).ppf(1.5)
    Traceback (most recent call last):
        ...
    netsor.laws._law_error.LawError: ppf: q=1.5 must be between 0 and 1 (at ...)
    """
