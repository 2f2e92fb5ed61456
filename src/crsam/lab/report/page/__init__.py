"""One HTML page of many runs: no network, no server, nothing beside the file itself."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from crsam._files import check_replaceable, write
from crsam.errors import UserError
from crsam.lab.report.page.content import Content, content_of
from crsam.lab.report.runs import Run, read_runs, tested
from crsam.progress import say

SCRIPTS = ("dom.js", "axes.js", "lines.js", "chart.js", "curves.js", "raster.js", "surface.js",
           "landscapes.js", "tables.js", "sections.js", "main.js")  # fmt: skip
"""In the order in which they need each other."""
LARGEST = 8_000_000
"""Bytes of a page: more is slow to open, and no mail takes it."""
POINTS = (2000, 1000, 500, 250, 120, 60, 30)
"""Of a curve: the most that fit are taken."""


def write_page(
    paths: Sequence[str | Path], file: str | Path, *, title: str = "", everything: bool = True
) -> list[Run]:
    """Writes the report of these runs, comparisons or folders of them into one HTML file.

    Args:
        paths: The folders.
        file: Where to; its folder is made.
        title: Of the page; else the methods.
        everything: With the runs that were only to choose by, of a study or a sweep.

    Returns:
        The runs that are in it.

    Raises:
        UserError: If there is no run, or the file cannot be written.
    """
    place = Path(file)
    check_replaceable(place)  # before all runs are read
    found = read_runs(paths)
    runs = found if everything else tested(found)
    if len(runs) < len(found):
        say(f"runs that were only to choose by are left out: {len(found) - len(runs)} (--all)")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {place}: {error.strerror}") from error
    write(place, page_of(runs, title=title))
    return runs


def page_of(runs: Sequence[Run], *, title: str = "") -> bytes:
    """The page of these runs; long curves are thinned until it is below `LARGEST`.

    Raises:
        UserError: If even that does not do.
    """
    for most in POINTS:
        made = page(content_of(runs, title=title, most=most))
        if len(made) < LARGEST:
            return made
    raise UserError(f"{len(runs)} runs do not fit on a page: give fewer folders")


def page(content: Content, *, live: bool = False) -> bytes:
    """A page of this content.

    Args:
        content: See `content_of`.
        live: Whether the page asks the server that it came from for news.
    """
    style, script = _source("page.css"), "\n".join(map(_source, SCRIPTS))
    script = f'"use strict";\n(() => {{\n{script}\n}})();'
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        f"img-src data:; connect-src {'self' if live else 'none'!r}; base-uri 'none'; "
        "form-action 'none'"
    )
    filled = {
        "policy": policy,
        "title": html.escape(f"{content['title']} — crsam"),
        "style": style,
        "live": "true" if live else "false",
        "content": as_json(content),
        "script": script,
    }
    text = _source("page.html")
    head, *rest = text.split("{{")
    parts = [head]
    for piece in rest:
        name, after = piece.split("}}", 1)
        parts += [filled[name], after]
    return "".join(parts).encode(errors="replace")


def as_json(content: Content) -> str:
    """JSON that can stand within a script element: no ``<``, ``>`` or ``&`` in it.

    Example:
        >>> as_json({"name": "</script>"})
        '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _source(name: str) -> str:
    return files("crsam.lab.report.page").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """As a content security policy names what may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
