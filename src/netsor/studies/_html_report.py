"""The page of a report: one file with everything in it, for any browser, in one style for every study."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
h1 {{ font-size: 1.6rem; margin-bottom: 0.2rem; }}
h2 {{ font-size: 1.2rem; margin-top: 2.5rem; }}
table {{ border-collapse: collapse; width: 100%; font-size: 0.9rem; }}
th, td {{ text-align: left; vertical-align: top; padding: 0.5rem 0.7rem; border-bottom: 1px solid #ddd; }}
td small, figcaption {{ color: #666; }}
.agrees {{ color: #00694d; font-weight: 600; }}
.disagrees {{ color: #b33; font-weight: 600; }}
.undecided {{ color: #8a5a00; font-weight: 600; }}
.absent {{ color: #666; }}
.quick {{ background: #fff3d6; padding: 0.6rem 0.9rem; border-left: 4px solid #e69f00; }}
.verdict {{ background: #eef5fb; padding: 0.6rem 0.9rem; border-left: 4px solid #0072b2; font-weight: 600; }}
.wide {{ overflow-x: auto; }}
@media (max-width: 45rem) {{
.wide td + td, .wide th {{ white-space: nowrap; }}
.stack thead {{ display: none; }}
.stack tr {{ display: block; border-bottom: 1px solid #ddd; padding: 0.5rem 0; }}
.stack td {{ display: block; border: 0; padding: 0.2rem 0; }}
.stack td + td::before {{ content: attr(data-head) ": "; font-weight: 600; }}
}}
h3 {{ font-size: 1rem; margin-top: 1.6rem; }}
.figures {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(22rem, 1fr)); gap: 1.5rem; }}
figure {{ margin: 0; }}
figure svg {{ width: 100%; height: auto; }}
figcaption {{ font-size: 0.85rem; }}
.formula {{ overflow-x: auto; margin: 0.4rem 0; }}
.formula svg {{ display: block; margin: 0.3rem 0; }}
.boxed {{ border: 1px solid #222; padding: 0.3rem 0.7rem; width: fit-content; max-width: calc(100% - 1.5rem); }}
pre {{ overflow-x: auto; font-size: 0.8rem; background: #f3f3f3; padding: 0.6rem; }}
code {{ background: #f3f3f3; padding: 0 0.2rem; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


FIGURES = "each figure as PDF and PNG, its data as CSV, and <code>manifest.json</code>"


def page(title: str, body: str) -> str:
    """The whole file; the title is text, the body is HTML."""
    return PAGE.format(title=html.escape(title), body=body)


def provenance_html(manifest: Mapping[str, Any], beside: str = FIGURES) -> str:
    """Versions, the command, and the files beside the page, in HTML."""
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    command = f"The command: <code>{html.escape(manifest['command'])}</code>"
    return f"{html.escape(versions)}. {command}. Beside this file: {beside}."


def figure_html(name: str, svg: bytes, caption: str) -> str:
    """A figure within the page, that can be linked to; the caption is text."""
    text = svg.decode()
    return (
        f'<figure id="figure-{html.escape(name)}">{text[text.index("<svg") :]}'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )
