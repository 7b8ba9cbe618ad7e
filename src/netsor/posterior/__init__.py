"""Conditioning on data: posteriors, Markov chains, plans as functions of normals."""
