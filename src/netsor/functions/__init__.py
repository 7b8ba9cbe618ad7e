"""The functions φ of nonlinearities, and their derivatives."""
