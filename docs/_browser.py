"""Files with which netsor runs in a web browser: Pyodide (Python compiled to WebAssembly) and an archive of netsor.

python docs/_browser.py pyodide FOLDER    Pyodide with numpy, scipy and matplotlib, from packages on PyPI
python docs/_browser.py netsor FILE       netsor and its pure Python dependencies, as a zip archive
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
# A package on PyPI whose wheel carries the files of Pyodide 314.0.3. Pyodide has no other home on PyPI.
CARRIER, INSIDE = "open-webui==0.12.4", "open_webui/frontend/pyodide/"
CORE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
COMPILED = ("numpy", "scipy", "matplotlib", "scikit-learn")  # packages with compiled parts, which Pyodide has
PURE = ("array-api-compat", "click", "filelock", "jinja2", "markupsafe", "threadpoolctl", "tqdm")


def write_pyodide(folder: Path) -> None:
    """The interpreter, its packages with compiled parts, and what these depend on."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as download:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run(
            [*command, "--python-version", "3.12", "--only-binary", ":all:", "-d", download, CARRIER], check=True
        )
        with zipfile.ZipFile(next(Path(download).glob("*.whl"))) as wheel:
            packages = json.loads(wheel.read(f"{INSIDE}pyodide-lock.json"))["packages"]
            names, wanted = list(COMPILED), list(CORE)
            for name in names:  # which grows meanwhile
                wanted.append(packages[name]["file_name"])
                names += [other for other in packages[name]["depends"] if other not in names]
            for name in wanted:
                (folder / name).write_bytes(wheel.read(f"{INSIDE}{name}"))


def write_netsor(path: Path) -> None:
    """The package and its pure Python dependencies, as they are installed here."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted((SOURCE / "netsor").rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, file.relative_to(SOURCE))
        for name in PURE:
            for entry in distribution(name).files or ():
                kept = entry.suffix == ".py" or "licenses" in entry.parts or entry.name == "METADATA"
                if kept and ".." not in entry.parts:  # the scripts of a package lie outside it
                    archive.write(entry.locate(), entry)


if __name__ == "__main__":
    {"pyodide": write_pyodide, "netsor": write_netsor}[sys.argv[1]](Path(sys.argv[2]))
