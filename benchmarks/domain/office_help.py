"""Build a domain's data set from LibreOffice's help; the label of a paragraph is the program that its page is about.

    python -m benchmarks.domain.office_help /usr/share/libreoffice/help/ru/text --out domain-ru

Debian's packages libreoffice-help-de, -ja, -ru, -zh-cn and others contain the pages. The word PROGRAM replaces names of
programs, because they reveal the label.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Annotated, Final

import typer

from albert_cli import console
from albert_cli.cli.app import command
from albert_cli.cli.options import AsJson, Debug, Out, Quiet
from albert_cli.errors import InputError
from benchmarks.domain.dataset import MIN_CHARACTERS, Page, format_facts, write_pages

_TEXT_CLASSES: Final = ("paragraph", "listitem")
_PROGRAM: Final = re.compile(r"\b(?:Writer|Calc|Impress|Draw|Math|Base|Chart|Basic)\b", re.IGNORECASE)

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


class _HelpParser(HTMLParser):
    """A parser of a help page's HTML that collects paragraphs and list items."""

    def __init__(self) -> None:
        super().__init__()
        self.paragraphs: list[str] = []
        self._is_text = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a paragraph."""
        if tag == "p":
            self._is_text = dict(attrs).get("class") in _TEXT_CLASSES
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        """End a paragraph."""
        if tag == "p":
            self._is_text = False

    def handle_data(self, data: str) -> None:
        """Add text to the paragraph if it has one of the classes of running text."""
        if self._is_text:
            self.paragraphs[-1] += data


def parse_help(html: str) -> tuple[str, ...]:
    """Return the paragraphs of a help page, without names of programs."""
    parser = _HelpParser()
    parser.feed(html)
    texts = (" ".join(_PROGRAM.sub("PROGRAM", text).split()) for text in parser.paragraphs)
    return tuple(text for text in texts if len(text) >= MIN_CHARACTERS)


def read_help(folder: Path) -> Iterator[Page]:
    """Yield the pages of a help folder in a fixed order; the label is the name of the program's folder.

    Raises `InputError` if the folder has no pages.
    """
    paths = sorted(folder.glob("*/**/*.html"))
    if not paths:
        message = f"{folder}: has no help pages (PROGRAM/**/*.html)"
        raise InputError(message, "name a folder such as /usr/share/libreoffice/help/ru/text")
    for path in paths:
        name = path.relative_to(folder)
        yield Page(str(name), name.parts[0], parse_help(path.read_text(encoding="utf-8")))


@command(app)
def office_help(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Such as /usr/share/libreoffice/help/ru/text.")],
    out: Out,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write the text of LibreOffice's help, and paragraphs labeled with their program.

    Example: python -m benchmarks.domain.office_help /usr/share/libreoffice/help/ru/text --out domain-ru
    """
    facts = write_pages(out, list(read_help(folder)))
    console.print_result(vars(facts), format_facts(facts))


if __name__ == "__main__":
    app()
