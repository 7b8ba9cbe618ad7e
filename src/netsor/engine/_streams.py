"""The random streams of a source: the last number of the key that a draw is seeded with.

χ have streams of their own: their generator takes a number of random bits that depends on the width, and normals drawn
after them would not be the same at two widths with one seed.
"""

CROSS, OWN, CHI, COORDINATES, ORIENTATION, ORIENTATION_CHI, SAMPLE = range(7)
