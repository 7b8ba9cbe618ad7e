"""Maximal-update parametrisations, derived by measurement; for any framework.

`_responses` measures how every operation of a network responds to changes of its inputs
and its weights, `_measurement` finds how these depend on the width, `_solve` finds the
exponents under which every change is of order 1, `_derive` repeats this until nothing
changes, and `_results` has the rule with its evidence. What runs and trains networks is
in `torch/maximal_update` and `jax/maximal_update`.
"""
