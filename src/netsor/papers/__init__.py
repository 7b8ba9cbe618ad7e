"""Reproductions with netsor: the experiments of the paper, and published results on
transformers at initialisation.
"""
