"""Read texts with tagged words from columns: a line is `TOKEN … TAG`, and blank lines separate texts.

The token is in the first column and the tag in the last one, as in CoNLL 2003. If the first column counts the words of
every text (1, 2, 3, …), as in GermEval 2014 and CoNLL-U, the token is in the second column. The tag is then in the only
column of tags, or in the first of several that follow the token directly: these are nested, and the first has the outer
entities.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

from albert_cli.errors import InputError
from albert_cli.os_errors import translate_read_errors
from albert_cli.tasks.data_files import read_lines
from albert_cli.tasks.entities import check_tag, is_tag

CONLL_SUFFIXES = (".conll", ".txt", ".bio", ".iob", ".tsv")
_LANGUAGE_PREFIX = re.compile(r"(?:[a-z]{2,3}(?:-[a-z]{1,9})*|simple):")  # WikiANN's `en:Paris` and `zh-yue:香`
_UNCOUNTED = re.compile(r"\d+[-.]\d+")  # CoNLL-U's numbers of multiword tokens (3-4) and empty nodes (3.1)
_COMMENT = re.compile(r"##?[ \t]")
_LOOK_AHEAD = 100  # lines of a file that decide whether it has columns


@dataclass(frozen=True)
class ConllRow:
    """A line with a token: its number, its columns, and the columns of the token and of the tag (-1: the last)."""

    number: int
    columns: Sequence[str]
    token: str
    tag_column: int = -1

    def parse_tag(self, path: Path) -> str:
        """Return the tag; raises `InputError` with file and line if there is none."""
        where = f"{path}:{self.number}"
        if len(self.columns) < 2:
            raise InputError(f"{where}: one column", "write a token and its tag, and a blank line after a text")
        if self.tag_column >= len(self.columns):
            message = f"{where}: {len(self.columns)} columns, but the tags are in column {self.tag_column + 1}"
            raise InputError(message, "add the tag")
        tag = self.columns[self.tag_column].strip()
        check_tag(tag, where)
        return tag


@dataclass(frozen=True)
class ConllFile:
    """The texts of a file, and notes on columns and prefixes that were not read.

    `has_blanks`: the tokens are the characters of the texts, with their blanks (`have_blanks`).
    """

    texts: list[list[ConllRow]]
    notes: list[str]
    has_blanks: bool


def read_conll(path: Path) -> ConllFile:
    """Read the texts of a file.

    Raises `InputError` for an empty token, if the first column counts the words of most texts but not of all, and if
    the column of tags is ambiguous.
    """
    texts = _split_texts(read_lines(path))
    notes = []
    if _is_counted(path, texts):
        counted = [[row for row in text if not _UNCOUNTED.fullmatch(row.columns[0])] for text in texts]
        tag_column = _find_tag_column(path, counted)
        texts = []
        for text in counted:
            texts.append([replace(row, token=row.columns[1].strip(), tag_column=tag_column) for row in text])
        tags = f", the tags in column {tag_column + 1}" if tag_column >= 0 else ""
        notes.append(f"{path}: column 1 counts the words; the tokens are in column 2{tags}")
    rows = list(chain.from_iterable(texts))
    has_blanks = have_blanks([row.token for row in rows])
    for row in rows:
        if not row.token.strip() and not has_blanks:
            raise InputError(f"{path}:{row.number}: an empty token", "remove it with its tag")
    if prefix := _common_prefix(texts):
        texts = [[replace(row, token=row.token.removeprefix(prefix)) for row in text] for text in texts]
        notes.append(f"{path}: every token begins with {prefix!r}, which is left out")
    return ConllFile(texts, notes, has_blanks)


def have_blanks(tokens: Sequence[str]) -> bool:
    """Return True if the tokens are the characters of texts, with the blanks, as in KLUE."""
    return any(map(str.isspace, tokens)) and all(len(token) == 1 for token in tokens)


def has_tagged_words(path: Path) -> bool:
    """Return True if a file, which may be compressed (.gz), begins with several tokens in columns that end in a tag.

    Such a file is neither plain text nor a table. One line is not sufficient, because a sentence may end in something
    like a tag, such as `O` or `B-52`.
    """
    if not path.is_file():  # a pipe can be read only once
        return False
    open_text = gzip.open if path.suffix.lower() == ".gz" else open
    with translate_read_errors(path), open_text(path, "rt", encoding="utf-8-sig", errors="replace") as stream:
        lines = [line.rstrip("\r\n") for line in islice(stream, _LOOK_AHEAD)]
    rows = [row for text in _split_texts(lines) for row in text]
    return len(rows) > 1 and all(len(row.columns) > 1 and is_tag(row.columns[-1].strip()) for row in rows)


def _split_texts(lines: Sequence[str]) -> list[list[ConllRow]]:
    """Return the lines of tokens, a list for each text, with the token in the first column.

    `-DOCSTART-` lines, and comments (`# …`, in KLUE `## …`) before the first token of a text, are skipped. A line
    `# … TAG` with as many columns as the file's other tokens, or with two, is no comment: its token is `#`. In columns
    that tabs separate, a token may be one blank.
    """
    widths = {2, _count_columns(lines)}
    texts: list[list[ConllRow]] = [[]]
    for number, line in enumerate(lines, start=1):
        columns = _split_columns(line)
        is_tagged_sign = len(columns) in widths and is_tag(columns[-1])
        is_comment = _COMMENT.match(line) is not None and not texts[-1] and not is_tagged_sign
        if line.strip() and columns[0] != "-DOCSTART-" and not is_comment:
            token = columns[0] if columns[0].isspace() and len(columns[0]) == 1 else columns[0].strip()
            texts[-1].append(ConllRow(number, columns, token))
        elif texts[-1]:
            texts.append([])
    return [text for text in texts if text]


def _split_columns(line: str) -> list[str]:
    """Split a line at tabs or, without tabs, at blanks; a no-break space is a part of a token."""
    return line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))


def _count_columns(lines: Sequence[str]) -> int:
    """Return the number of columns in the first line of a token that is certainly no comment; 2 without one."""
    for line in lines:
        if line.strip() and not line.startswith(("#", "-DOCSTART-")):
            return len(_split_columns(line))
    return 2


def _is_counted(path: Path, texts: Sequence[Sequence[ConllRow]]) -> bool:
    """Return True if the first column counts 1, 2, 3, … in every text, and the second column has more than tags.

    Raises `InputError` with file and line if this is so in several texts and in most of them, but not in all. Otherwise
    the numbers of all texts would be read as tokens.
    """
    miscounts = [miscount for text in texts if (miscount := _find_miscount(text))]
    if miscounts and len(texts) - len(miscounts) <= max(1, len(miscounts)):
        return False
    rows = [row for text in texts for row in text]
    if all(len(row.columns) < 2 or is_tag(row.columns[1].strip()) for row in rows):
        return False
    if miscounts:
        row, count = miscounts[0]
        message = f"{path}:{row.number}: column 1 is {row.columns[0]!r}, but this is word {count} of its text"
        raise InputError(message, "number the words of each text from 1, with blank lines only between texts")
    for row in rows:
        if len(row.columns) < 2:
            raise InputError(f"{path}:{row.number}: one column", "write the word after its number")
    return True


def _find_miscount(text: Sequence[ConllRow]) -> tuple[ConllRow, int] | None:
    """Return the first row whose first column is not its word's number, with this number; None if there is none."""
    count = 0
    for row in text:
        if _UNCOUNTED.fullmatch(row.columns[0]):
            continue
        count += 1
        if row.columns[0] != str(count):
            return row, count
    return None if count else (text[0], 1)


def _find_tag_column(path: Path, texts: Sequence[Sequence[ConllRow]]) -> int:
    """Return the index of the column of tags in texts whose words are counted; -1 if no column has tags.

    In a column of tags most cells are tags, so that a wrong one is reported. Raises `InputError` if several columns
    have tags and the first of them does not follow the token.
    """
    rows = [row for text in texts for row in text]
    tag_columns = []
    for column in range(2, max(len(row.columns) for row in rows)):
        tags = [row for row in rows if column < len(row.columns) and is_tag(row.columns[column].strip())]
        if len(tags) > len(rows) / 2:
            tag_columns.append(column)
    if len(tag_columns) > 1 and tag_columns[0] != 2:
        names = ", ".join(str(column + 1) for column in tag_columns)
        raise InputError(f"{path}: several columns have tags ({names})", "remove all of them but one")
    return tag_columns[0] if tag_columns else -1


def _common_prefix(texts: Sequence[Sequence[ConllRow]]) -> str:
    """Return the language and colon with which all tokens begin, as in WikiANN's `en:Paris`; "" if there is none."""
    tokens = [row.token for text in texts for row in text]
    match = _LANGUAGE_PREFIX.match(tokens[0]) if len(tokens) > 1 else None
    is_common = match is not None and all(token.startswith(match[0]) and token != match[0] for token in tokens)
    return match[0] if match is not None and is_common else ""
