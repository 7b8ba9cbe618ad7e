"""Names of files: one name, one file."""

from collections import Counter
from pathlib import Path

import netsor


def test_no_two_files_have_one_name():
    """Within the language, the engine and the laws, so that a name says which file is meant."""
    package = Path(netsor.__file__).parent
    files = [path for room in ("language", "engine", "laws") for path in (package / room).rglob("*.py")]
    names = Counter(path.stem.strip("_") for path in files if path.stem != "__init__")
    assert len(names) > 50  # the files were found
    assert [name for name, count in names.items() if count > 1] == []
