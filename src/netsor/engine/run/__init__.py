"""Running a plan for many replicas: keys of the generators, chunks, precision."""
