"""Derivatives of programs: gradients, tangent kernels and steps of optimisers."""
