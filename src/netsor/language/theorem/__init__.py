"""The checker: whether the paper's theorem covers a program."""
