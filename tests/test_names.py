"""Names of files: one name, one file. And their text: UTF-8 in every locale."""

import re
from collections import Counter
from pathlib import Path

import netsor


def test_file_names_are_unique():
    """Within the language, the engine and the laws, so that a name says which file is
    meant.
    """
    package = Path(netsor.__file__).parent
    files = [
        path
        for room in ("language", "engine", "laws")
        for path in (package / room).rglob("*.py")
    ]
    names = Counter(path.stem.strip("_") for path in files if path.stem != "__init__")
    assert len(names) > 50  # the files were found
    assert [name for name, count in names.items() if count > 1] == []


def test_text_is_utf8_in_every_locale():
    """Without an encoding, Python takes that of the locale, and the page of the
    explorer is not ASCII.
    """
    package = Path(netsor.__file__).parent
    files = list(package.rglob("*.py"))
    assert len(files) > 100
    calls = [
        f"{path.name}: {call}"
        for path in files
        for call in re.findall(
            r"\.(?:read|write)_text\(.*", path.read_text(encoding="utf-8")
        )
    ]
    assert calls
    assert [call for call in calls if "utf-8" not in call] == []
