"""Render the pages of reports and experiments from jinja2 templates, as HTML and as Markdown.

A page, such as `build.ReportPage`, is a dataclass whose fields a template lays out. Whatever the template prints is
cleaned and escaped, so that no text of a result file becomes markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from albert_cli import console

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True)
class Cell:
    """A value of a table with smaller notes below it."""

    value: str
    notes: Sequence[str] = ()
    is_best: bool = False  # True for the best value of a row or column, which is set in bold type


@dataclass(frozen=True)
class Segment:
    """A part of a text; if it has a label, it is highlighted, and the label is written behind it."""

    text: str
    label: str = ""
    is_wrong: bool = False  # True for a mistake, which is highlighted in another color


@dataclass(frozen=True)
class MarkedText:
    """A text in segments, with a smaller note below it."""

    segments: Sequence[Segment]
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers below headers."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str | Cell | MarkedText]]


def render_html(template: str, page: object) -> str:
    """Return the page, laid out by a template such as "report", as one HTML file without links to files or scripts."""
    return _environment("html").get_template(f"{template}.html.jinja").render(page=page)


def render_markdown(template: str, page: object) -> str:
    """Return the page as Markdown, with the description of each figure instead of the figure."""
    text = _environment("md").get_template(f"{template}.md.jinja").render(page=page)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"  # sections without content leave blank lines


def strip_unprintable(text: str) -> str:
    """Remove control characters and replace lone surrogates, neither of which HTML or SVG may contain."""
    return console.strip_control_chars(text).encode("utf-8", "replace").decode()


@cache
def _environment(language: Literal["html", "md"]) -> Environment:
    """Return jinja2's environment for the templates of a language, `report/templates/NAME.LANGUAGE.jinja`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape

    def clean_and_escape(value: object) -> Markup:
        if isinstance(value, Markup):  # the output of a macro, which has been escaped
            return value
        text = strip_unprintable(str(value))
        return escape(text) if language == "html" else Markup(console.escape_markdown(text))  # noqa: S704

    return Environment(
        loader=PackageLoader("albert_cli.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True, finalize=clean_and_escape,
    )  # fmt: skip
