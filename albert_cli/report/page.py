"""A page as blocks of text, tables and drawings, of which two templates make HTML and Markdown.

Every text is escaped by the template's environment as it is written, so that no text of a page is ever markup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from albert_cli import console

if TYPE_CHECKING:
    from jinja2 import Environment

SERIES = 6  # colours that the stylesheet defines as --s1 … --s6


@dataclass(frozen=True)
class Span:
    """Words in a look of the stylesheet: `beside` (smaller, below), `best`, `code`, `strong`; `share` shades them."""

    text: str
    look: str = "beside"
    share: float | None = None


@dataclass(frozen=True)
class Key:
    """An entry of a legend: a mark in the colour of a series, and its name."""

    text: str
    series: int
    shape: Literal["dot", "line", "faint"] = "dot"

    @property
    def colour(self) -> int:
        """1 to `SERIES`; past the last they begin again."""
        return (self.series - 1) % SERIES + 1


Part = str | Span | Key
Text = Part | Sequence[Part]


@dataclass(frozen=True)
class Paragraph:
    """Text; `small` for notes."""

    text: Text
    small: bool = False


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: Text


@dataclass(frozen=True)
class Table:
    """A table whose first `text_columns` columns are text and whose others are numbers."""

    headers: Sequence[str]
    rows: Sequence[Sequence[Text]]
    text_columns: int = 1
    caption: str = ""
    look: str = ""  # compact, prose, commands


@dataclass(frozen=True)
class Drawing:
    """An SVG element, and what a screen reader says for it."""

    svg: str
    describes: str


@dataclass(frozen=True)
class Figure:
    """A drawing with its title above and what is below it."""

    drawing: Drawing
    title: str
    caption: Sequence[Part] = ()
    numbers: Table | None = None


@dataclass(frozen=True)
class Grid:
    """Figures side by side."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Details:
    """What opens below a summary."""

    summary: str
    blocks: Sequence[Block]
    open: bool = False


@dataclass(frozen=True)
class Group:
    """Blocks that belong together, by a class of the stylesheet."""

    look: str
    blocks: Sequence[Block]


Block = Paragraph | Heading | Table | Figure | Grid | Details | Group


@dataclass(frozen=True)
class Section:
    """A section with its heading and its anchor; without a title neither is shown."""

    anchor: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Fact:
    """A tile at the top: a name, a number, and what it stands beside."""

    name: Text
    value: str
    beside: str


@dataclass(frozen=True)
class Page:
    """All of it; `heading` stands at the top, `title` in the browser's tab."""

    title: str
    heading: str
    sections: Sequence[Section]
    footer: Section
    lead: Text = ""
    facts: Sequence[Fact] = ()


def html(page: Page) -> str:
    """The page as one HTML file that loads nothing and runs nothing."""
    return _environment("html").get_template("page.html.j2").render(page=page)


def markdown(page: Page) -> str:
    """The same as Markdown; of a drawing the words that describe it."""
    written = _environment("markdown").get_template("page.md.j2").render(page=page)
    return re.sub(r"\n{3,}", "\n\n", written).strip() + "\n"


def clean(text: str) -> str:
    """Without control characters and lone surrogates, which no HTML or UTF-8 file may hold."""
    return console.strip_control_chars(text).encode("utf-8", "replace").decode()


def _parts(text: Text) -> Sequence[Part]:
    return (text,) if isinstance(text, str | Span | Key) else text


def _line(text: Text) -> str:
    """A text in Markdown, where no drawing is that a key could belong to."""
    return " ".join(p if isinstance(p, str) else p.text for p in _parts(text) if not isinstance(p, Key))


@cache
def _environment(kind: Literal["html", "markdown"]) -> Environment:
    """The templates' environment, whose every output is cleaned and escaped unless it is markup of a template."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape

    def written(escaped: Callable[[str], str]) -> Callable[[object], Markup]:
        return lambda value: value if isinstance(value, Markup) else Markup(escaped(str(value)))  # noqa: S704

    made = Environment(
        loader=PackageLoader("albert_cli.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, undefined=StrictUndefined,
        finalize=written(lambda text: escape(clean(text)) if kind == "html" else console.escape_markdown(clean(text))),
    )  # fmt: skip
    made.filters |= {"parts": _parts, "line": _line}
    return made
