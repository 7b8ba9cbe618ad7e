"""Small networks, each at most ten lines of the language."""
