"""The random streams of a source: what a draw is for is a number in the key that it is seeded with.

χ have streams of their own: their generator takes a number of random bits that depends on the width, and normals drawn
after them would not be the same at two widths with one seed.
"""

CROSS = 0  # of new sources with the directions that are there: coordinates, or at infinite width normals of pairs
OWN = 1  # of new sources with each other
CHI = 2  # their norms outside the frame
COORDINATES = 3  # all coordinates of new sources
ORIENTATION = 4  # the coordinates of a frame's directions that outputs ask for
ORIENTATION_CHI = 5  # norms outside that frame
SAMPLE = 6  # outside of frames: one coordinate of a source, random scalars, the normals of draws of a conditional law
