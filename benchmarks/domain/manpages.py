"""Build a domain's data set from translated manual pages; the label of a paragraph is the section of its manual page.

    python -m benchmarks.domain.manpages /usr/share/man/de --out domain-de

Debian's packages manpages-de, -fr, -ja, -zh and others contain the pages; `mandoc` renders them. Sections are 1
(commands), 4 (devices), 5 (file formats), 7 (conventions), 8 (administration) and so on. Paths would reveal the label,
so the word PATH replaces them. So would the section in a reference such as ls(1), so it is removed.
"""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
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

_RENDER_COMMAND: Final = ("mandoc", "-T", "html", "-K", "utf-8", "-O", "fragment")
_TEXT_TAGS: Final = ("p", "dd")  # HTML blocks of running text
_OTHER_TAGS: Final = ("pre", "table", "dt", "h1", "h2")  # blocks that are left out
_REFERENCE: Final = re.compile(r"\((?:\d[a-z]{0,4}|n|l)\)")  # the section in `ls(1)`
_PATH: Final = re.compile(r"(?<![\w/.])~?/[\w.+*%@-]+(?:/[\w.+*%@-]*)*")

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


class _ParagraphParser(HTMLParser):
    """A parser of mandoc's HTML that collects running text: no headings, terms, tables or examples."""

    def __init__(self) -> None:
        super().__init__()
        self.paragraphs = [""]
        self._open: list[str] = []  # tags of the blocks around the current position, the innermost block last

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a paragraph at the tag of a block."""
        if tag in _TEXT_TAGS or tag in _OTHER_TAGS:
            self._open.append(tag)
            self.paragraphs.append("")
        elif tag == "br":
            self.paragraphs[-1] += " "

    def handle_endtag(self, tag: str) -> None:
        """End the paragraph of a block."""
        if tag in self._open:
            while self._open.pop() != tag:  # the blocks inside this block may lack end tags
                pass
            self.paragraphs.append("")

    def handle_data(self, data: str) -> None:
        """Add text to the paragraph if it is in a block of running text, and in no block that is left out."""
        if self._open and not set(self._open) & set(_OTHER_TAGS):
            self.paragraphs[-1] += data


def parse_paragraphs(html: str) -> tuple[str, ...]:
    """Return the paragraphs of a page rendered by mandoc as HTML, without paths and without sections of references."""
    parser = _ParagraphParser()
    parser.feed(html)
    texts = []
    for paragraph in parser.paragraphs:
        without_sections = _REFERENCE.sub("", paragraph)
        text = _PATH.sub("PATH", without_sections)
        texts.append(" ".join(text.split()))
    return tuple(text for text in texts if len(text) >= MIN_CHARACTERS)


def read_pages(folder: Path) -> Iterator[Page]:
    """Yield the pages of a manual in a fixed order, without aliases of other pages.

    Raises `InputError` if mandoc is not installed or the folder has no pages.
    """
    if shutil.which("mandoc") is None:
        raise InputError("mandoc is not installed", "install it with `apt install mandoc`")
    paths = sorted(path for path in folder.glob("man*/*.gz") if not path.is_symlink())
    if not paths:
        raise InputError(f"{folder}: has no manual pages (man*/*.gz)", "name a folder such as /usr/share/man/de")
    for path in paths:
        source = gzip.decompress(path.read_bytes())
        if not source.startswith(b".so "):  # roff's `.so FILE` makes this page an alias of another page
            html = subprocess.run(_RENDER_COMMAND, input=source, capture_output=True, check=False).stdout.decode()
            section = path.parent.name.removeprefix("man")
            yield Page(path.name.removesuffix(".gz"), f"section {section}", parse_paragraphs(html))


@command(app)
def manpages(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A manual, such as /usr/share/man/de.")],
    out: Out,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write the text of a manual's pages, and paragraphs labeled with their section.

    Example: python -m benchmarks.domain.manpages /usr/share/man/de --out domain-de
    """
    facts = write_pages(out, list(read_pages(folder)))
    console.print_result(vars(facts), format_facts(facts))


if __name__ == "__main__":
    app()
