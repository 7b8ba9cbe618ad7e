"""The error of laws."""

from ..language._where import PlacedError


class LawError(PlacedError):
    """What a law refuses: a question that it cannot answer, or numbers that make no law. It is a ValueError."""
