"""netsor in a web browser: Pyodide (Python compiled to WebAssembly), an archive of
netsor, and pages that use them.

- `python docs/_browser.py pyodide FOLDER` writes Pyodide with numpy, scipy and
  matplotlib, from packages on PyPI.
- `python docs/_browser.py netsor FILE` writes netsor and its pure Python dependencies
  as a zip archive.
- `python docs/_browser.py explore FOLDER` writes the explorer as static files.

It is also a hook of mkdocs: code runs on pages with `live: true` at their top, and on
notebooks.
"""

import functools
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path, PurePath
from typing import Any

from netsor.explore import _forms
from netsor.explore._view import markup

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
# A package on PyPI whose wheel carries the files of Pyodide 314.0.3. Pyodide has no
# other home on PyPI.
CARRIER, INSIDE = "open-webui==0.12.4", "open_webui/frontend/pyodide/"
CORE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
LOCK = "pyodide-lock.json"
# packages with compiled parts, which Pyodide has
COMPILED = ("numpy", "scipy", "matplotlib")
# of what matplotlib names: the first is for PDF files, the second for nothing
UNUSED = {"fonttools", "pytz"}
PURE = (
    "array-api-compat",
    "click",
    "filelock",
    "jinja2",
    "latex2mathml",
    "markupsafe",
    "threadpoolctl",
    "tqdm",
)
# where it is loaded from, if the site has no copy
CDN = "https://cdn.jsdelivr.net/pyodide/v314.0.3/full/"
# bytes of Pyodide, numpy and scipy, which are loaded before the first answer
SIZE = 32_900_000
LOCAL = ROOT / ".pyodide"  # what `make .pyodide` writes
ARCHIVE = "netsor.zip"
ASSETS = ("live.js", "live-worker.js", "live.css")
DEMO = re.compile(r'<div data-demo="(\w+)" data-controls="([\w ]*)"></div>')


def write_pyodide(folder: Path) -> None:
    """The interpreter, its packages with compiled parts, and what these depend on."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as download:
        options = "--quiet --disable-pip-version-check --no-deps"
        source = "--python-version 3.12 --only-binary :all:"
        command = [sys.executable, "-m", "pip", "download", *options.split()]
        command += [*source.split(), "-d", download, CARRIER]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(Path(download).glob("*.whl"))) as wheel:
            lock = json.loads(wheel.read(f"{INSIDE}{LOCK}"))
            packages = lock["packages"]
            depends = set(packages["matplotlib"]["depends"]) - UNUSED
            packages["matplotlib"]["depends"] = sorted(depends)
            files = [packages[name]["file_name"] for name in _with_depends(packages)]
            for name in (*CORE, *files):
                (folder / name).write_bytes(wheel.read(f"{INSIDE}{name}"))
    (folder / LOCK).write_text(json.dumps(lock))
    compile_bytecode(folder, "numpy", "scipy")


def _with_depends(packages: dict[str, Any]) -> list[str]:
    """The compiled packages, and all that they depend on."""
    names = list(COMPILED)
    for name in names:  # the list grows as the loop runs
        for other in packages[name]["depends"]:
            if other not in names:
                names.append(other)
    return names


def compile_bytecode(folder: Path, *archives: str) -> None:
    """Compile archives in the folder of Pyodide, if node is here: the bytecode of
    another Python would be of no use.
    """
    if shutil.which("node"):
        docs = ROOT / "docs"
        program = [docs / "_pyodide.mjs", folder, docs / "_bytecode.py", ""]
        subprocess.run(["node", *program, *archives], check=True)


def write_netsor(path: Path) -> None:
    """The package and its pure Python dependencies, as they are installed here."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted((SOURCE / "netsor").rglob("*")):
            # a browser has no PyTorch
            if file.is_file() and not {"__pycache__", "torch"} & set(file.parts):
                archive.write(file, file.relative_to(SOURCE))
        for name in PURE:
            for entry in distribution(name).files or ():
                if _is_needed(entry):
                    archive.write(entry.locate(), entry)
    if LOCAL.exists():
        shutil.copy(path, LOCAL / ARCHIVE)
        compile_bytecode(LOCAL, ARCHIVE)
        shutil.move(LOCAL / ARCHIVE, path)


def _is_needed(file: PurePath) -> bool:
    """Whether a file of a dependency belongs in the archive: code or its licence."""
    if {"..", "tests"} & set(file.parts):  # the scripts of a package lie outside it
        return False
    is_licence = "licenses" in file.parts or file.name == "METADATA"
    return is_licence or file.suffix == ".py"


def script(place: str, pyodide: str, archive: Path) -> str:
    """What a page loads: the script and the styles, which load nothing else until they
    are asked to.
    """
    size = SIZE + archive.stat().st_size
    data = f'data-pyodide="{pyodide}" data-archive="{archive.name}" data-size="{size}"'
    return (
        f'<link rel="stylesheet" href="{place}explore.css">'
        f'<link rel="stylesheet" href="{place}live.css">'
        f'<script defer src="{place}explore.js"></script>'
        f'<script defer src="{place}live.js" {data}></script>'
    )


def copy_page(folder: Path) -> None:
    """The style and the script that these pages share with `netsor explore`."""
    explorer = SOURCE / "netsor" / "explore"
    shutil.copy(explorer / "_page.css", folder / "explore.css")
    shutil.copy(explorer / "_page.js", folder / "explore.js")


def _demo(kind: str, controls: str, stored: str) -> str:
    """A form with its answer: at first the stored one."""
    return str(markup().demo(_forms.form(kind, controls.split() or None), stored))


@functools.cache
def _stored(kind: str) -> str:
    """The answer to a form with its initial values."""
    answers: list[str] = []

    def emit(_: str, content: str) -> None:
        answers.append(content)

    values = {"layer": _forms.START, "model": {"name": "gpt2"}}[kind]
    _forms.answer(kind, json.dumps(values), emit)
    return answers[-1]


def write_explorer(folder: Path, pyodide: str = CDN) -> None:
    """The explorer as static files, with those of Pyodide if they are here."""
    write_netsor(folder / ARCHIVE)
    for name in ASSETS:
        shutil.copy(ROOT / "docs" / "assets" / name, folder)
    copy_page(folder)
    if LOCAL.exists():
        shutil.copytree(LOCAL, folder / "pyodide", dirs_exist_ok=True)
        pyodide = "pyodide/"
    body = (
        '<p class="netsor-note">Everything is computed in your browser; nothing that'
        " you enter leaves this page.</p>"
    )
    for title, kind in (("One layer", "layer"), ("One model", "model")):
        demo = _demo(kind, "", _stored(kind))
        body += f"<section><h2>{title}</h2>{demo}</section>"
    head = script("", pyodide, folder / ARCHIVE)
    (folder / "index.html").write_text(str(markup().page(head, body)))


# The hook of mkdocs


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Called by mkdocs for each page: put forms where a page asks for them, and the
    script where code runs.
    """
    if not (page.meta.get("live") or page.file.src_uri.startswith("notebooks/")):
        return content
    archive = Path(config.site_dir) / "assets" / ARCHIVE
    if not archive.exists():
        write_netsor(archive)
    content = DEMO.sub(_answered, content)
    pyodide = "pyodide/" if LOCAL.exists() else config.extra["pyodide"]
    to_root = "../" * page.file.src_uri.count("/")
    return content + script(f"{to_root}assets/", pyodide, archive)


def _answered(match: re.Match[str]) -> str:
    """The form that a page asks for, with the answer to its initial values."""
    kind, controls = match.groups()
    return _demo(kind, controls, _stored(kind))


def on_post_build(config: Any) -> None:
    """Called by mkdocs when the site is written: the files that the script loads."""
    assets = Path(config.site_dir) / "assets"
    write_netsor(assets / ARCHIVE)
    copy_page(assets)
    # of the theme: search in other languages
    shutil.rmtree(assets / "javascripts" / "lunr", ignore_errors=True)
    for file in Path(config.site_dir).rglob("*.map"):  # for those who debug its scripts
        file.unlink()
    if LOCAL.exists():
        shutil.copytree(LOCAL, assets / "pyodide", dirs_exist_ok=True)


COMMANDS = {"pyodide": write_pyodide, "netsor": write_netsor, "explore": write_explorer}

if __name__ == "__main__":
    command, target = sys.argv[1:]
    COMMANDS[command](Path(target))
