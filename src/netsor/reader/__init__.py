"""The reader of networks: what the front ends for PyTorch and JAX share.

A front end records the graph of a network and the laws of its parameters, and has a
table of the operations of its framework. Here are the axis rule (`_axes`), what
operations do to vectors and scalars (`_arithmetic`, `_rearrangement`, `_convolution`,
`_einsum`), what parameters become (`_random_parameters`), the walk through the graph
(`_reader`), and blocks and branches (`_structure`, `_network`).
"""
