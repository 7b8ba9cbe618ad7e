"""Run in Pyodide: compile the Python files of archives to bytecode, which halves the
time of their import in a browser.

The archives lie in /pyodide, the folder of Pyodide: the wheels of the packages that are
named, or a zip file.
"""

import hashlib
import io
import json
import py_compile
import sys
import zipfile
from pathlib import Path

FOLDER = Path("/pyodide")


def compiled(path):
    """The content of an archive with a .pyc file for each .py file."""
    result = io.BytesIO()
    with (
        zipfile.ZipFile(path) as archive,
        zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as written,
    ):
        for file in archive.namelist():
            content = archive.read(file)
            if file.endswith(".py"):
                Path("source.py").write_bytes(content)
                py_compile.compile("source.py", "source.pyc", file, doraise=True)
                file, content = f"{file}c", Path("source.pyc").read_bytes()
            written.writestr(file, content)
    return result.getvalue()


lock = json.loads((FOLDER / "pyodide-lock.json").read_text())
for name in sys.argv[1:]:
    entry = lock["packages"].get(name)
    path = FOLDER / (entry["file_name"] if entry else name)
    path.write_bytes(compiled(path))
    if entry:
        entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
(FOLDER / "pyodide-lock.json").write_text(json.dumps(lock))
