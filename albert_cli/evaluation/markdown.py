"""The report's page as Markdown: the same headings, paragraphs and tables; of a drawing the words that describe it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_HEADINGS = {"h1": "#", "h2": "##", "h3": "###"}
_BLOCKS = {*_HEADINGS, "p", "figcaption", "summary", "caption"}
_SKIPPED = {"head", "nav", "svg"}
# Whatever could be read as markup, of Markdown or of HTML.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")


def from_page(page: str) -> str:
    """Markdown of a page made by `page.document`; text of the page is never markup."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return "\n\n".join(reader.blocks) + "\n"


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[str] = []
        self._text = ""
        self._skipping = 0
        self._fact: str | None = None
        self._rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a block or a cell; of a drawing take the description."""
        if tag == "svg" and not self._skipping:
            self.blocks.append(f"*{_escaped(dict(attrs).get('aria-label') or 'drawing')}*")
        if tag in _SKIPPED:
            self._skipping += 1
        if self._skipping:
            return
        if tag == "table":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])
        if tag in _BLOCKS or tag in ("td", "th", "dt"):
            self._text = ""
        elif tag == "dd":
            self._fact = dict(attrs).get("class")
            self._text += ": " if self._fact == "value" else "; "
        elif tag in ("span", "br"):
            self._text += " "

    def handle_endtag(self, tag: str) -> None:
        """End a block, a cell or a table."""
        if tag in _SKIPPED:
            self._skipping -= 1
        if self._skipping or tag in _SKIPPED:
            return
        said = _escaped(" ".join(self._text.split()))
        if tag in ("td", "th"):
            self._rows[-1].append(said)
        elif tag == "table":
            self.blocks.append(_table(self._rows))
        elif tag == "dd" and self._fact == "beside":
            self.blocks.append("* " + said.removesuffix(";"))
        elif tag in _BLOCKS and said:
            self.blocks.append(f"{_HEADINGS[tag]} {said}" if tag in _HEADINGS else said)
        elif tag == "span":
            self._text += " "

    def handle_data(self, data: str) -> None:
        """Collect the text of the block or cell."""
        if not self._skipping:
            self._text += data


def _escaped(text: str) -> str:
    # A line of digits and a full stop, or of a hyphen or plus, would begin a list.
    return re.sub(r"^(\d+)([.)])(?=\s)|^([-+=])(?=\s|=*$)", r"\1\\\2\3", _SPECIAL.sub(r"\\\1", text))


def _table(rows: list[list[str]]) -> str:
    width = max((len(row) for row in rows), default=0)
    padded = [[*row, *[""] * (width - len(row))] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in padded]
    return "\n".join([*lines[:1], "|" + " --- |" * width, *lines[1:]])
