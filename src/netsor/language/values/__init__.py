"""Values: arrays, vectors, scalars, widths, parameters, and the graph of them all."""
