"""A page that is safe by construction: text is escaped as it becomes markup, nothing is loaded."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

# No scripts, no network: only the page's own styles, which SVG needs inline as well.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


class Markup(str):
    """Text that is markup already; every other string is escaped by `tag`."""

    __slots__ = ()


def join(*children: str) -> Markup:
    """Several pieces after each other; plain strings are escaped."""
    return Markup("".join(c if isinstance(c, Markup) else html.escape(clean(c)) for c in children))


def tag(name: str, *children: str, **attributes: str) -> Markup:
    """An element; `class_` stands for class, and an underscore in a name for a hyphen."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(clean(value))}"' for key, value in attributes.items()
    )
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def clean(text: str) -> str:
    """Without control characters and lone surrogates, which no HTML or UTF-8 file may hold."""
    return (
        "".join(c if c >= " " or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
        .encode("utf-8", "replace")
        .decode()
    )


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1, caption: str = "") -> Markup:
    """A table whose first `text_columns` columns are text and whose others are aligned numbers."""

    def cells(row: Sequence[str], kind: str) -> list[Markup]:
        sides = ["text" if i < text_columns else "number" for i in range(len(row))]
        return [
            tag("th", cell, scope="row", class_=side)
            if kind == "td" and i == 0
            else tag(kind, cell, class_=side, **({"scope": "col"} if kind == "th" else {}))
            for i, (cell, side) in enumerate(zip(row, sides, strict=True))
        ]

    head = tag("thead", tag("tr", *cells(headers, "th")))
    body = tag("tbody", *(tag("tr", *cells(row, "td")) for row in rows))
    said = [tag("caption", caption)] if caption else []
    return tag("div", tag("table", *said, head, body), class_="table", tabindex="0", role="region")


def figure(drawing: Markup, *caption: str, title: str = "") -> Markup:
    """A drawing with its title above and its caption below."""
    head = [tag("h3", title)] if title else []
    return tag("figure", *head, drawing, tag("figcaption", *caption))


def key(label: str, series: int, shape: str = "dot") -> Markup:
    """An entry of a legend: a mark in the colour of a series, and its name."""
    return tag("span", tag("i", class_=f"{shape} s{series}", aria_hidden="true"), label, class_="key")


def document(title: str, navigation: list[tuple[str, str]], *sections: str) -> str:
    """The whole page."""
    style = Markup((Path(__file__).parent / "report.css").read_text(encoding="utf-8"))
    links = [tag("a", label, href=f"#{anchor}") for anchor, label in navigation]
    head = join(
        Markup('<meta charset="utf-8">\n'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{html.escape(POLICY)}">\n'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">\n'),
        Markup('<meta name="color-scheme" content="light dark">\n'),
        tag("title", title),
        tag("style", style),
    )
    body = join(tag("nav", *links, aria_label="Sections"), tag("main", *sections))
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'
