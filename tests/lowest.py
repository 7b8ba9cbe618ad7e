"""Print the lowest version of every dependency that pyproject.toml allows, as
constraints for pip.
"""

import re
import tomllib
from pathlib import Path

FLOOR = re.compile(r"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)")


def lowest(pyproject):
    """A line for each requirement `name>=version`, of the library and of all its
    extras.
    """
    project = tomllib.loads(pyproject.read_text())["project"]
    every = [project["dependencies"], *project["optional-dependencies"].values()]
    found = [
        FLOOR.match(requirement)
        for requirements in every
        for requirement in requirements
    ]
    return sorted({f"{floor[1]}=={floor[2]}" for floor in found if floor})


if __name__ == "__main__":
    print(*lowest(Path(__file__).parent.parent / "pyproject.toml"), sep="\n")
