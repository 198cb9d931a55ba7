"""Extract running text from docstrings: reStructuredText, numpydoc, Google style and Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from inspect import cleandoc
from typing import NamedTuple

# Kinds of lines
_BORDER = re.compile(r"""([=\-~^"*+#.`:_])\1{2,}$""")  # under a heading, or a transition
_TABLE = re.compile(r"[=\-+|][=\-+| ]{4,}$")
_DIRECTIVE = re.compile(r"\.\. +([\w:-]+?)::\s*(.*)")
_SECTION = re.compile(r"[A-Z][\w ]{0,30}:$")
_SIGNATURE = re.compile(r"[\w.]+\(.*\)?(?: ?-> ?.*|:)?$")
_PROSE_DIRECTIVES = {"note", "warning", "tip", "important", "caution", "attention", "hint", "danger"}
_LABEL_DIRECTIVES = {"versionadded", "versionchanged", "deprecated", "seealso", "rubric", "topic", "admonition"}

# List items and descriptions of parameters
_BULLET = re.compile(r"(?:[-*+•]|\(?\d{1,2}[.)]|\(?[a-z]\))\s+(.*)")
_FIELD = re.compile(
    r":(param|parameter|arg|argument|key|keyword|raises?|except|exception|returns?|yields?|[ic]?var"
    r"|type|rtype|vartype|meta)\b[^:`]*:\s*(.*)"
)
_TYPE_FIELDS = ("type", "rtype", "vartype", "meta")
_TYPED = re.compile(r"[\w*`'\"{}.,/ ]+ : ?(?:\S|$)")  # numpydoc: `axis : int, optional`
_NAMED = re.compile(r"[`*]*[\w.]+[`*]*( ?\([^()]*\))?:(?:\s+|$)(.*)")  # Google: `axis (int): The axis.`
_DASHED = re.compile(r"['\"`*]*[\w.*()=]+['\"`*]*(?:, \S+)? +--? +(.*)")  # `axis -- the axis`

# Markup within a line
_ROLE = re.compile(r":[\w:.+-]+:`([^`]*)`")
_QUOTED = re.compile(r"``?([^`]+?)``?_{0,2}")
_TARGET = re.compile(r"\s*<[^<>]*>$")
_LINK = re.compile(r"\[([^\]]+)\](?:\([^)]*\))?")
_FOOTNOTE = re.compile(r"\s*\[#?[\w-]*\]_")
_STARRED = re.compile(r"(?<![\w*])\*{1,2}([^*\s](?:[^*]*[^*\s])?)\*{1,2}(?![\w*])")

# Prose
_CODE = re.compile(r"(?:import|from \S+ import|def|class|return|await|async) |\S+ = ")
_WORD = re.compile(r"""(?<![^\s("'])[A-Za-z][A-Za-z'-]*(?=[\s,.;:!?)"']|$)""")
_MIN_WORDS = 5
_MIN_WORD_FRACTION = 0.75


def extract_prose(docstring: str) -> list[str]:
    """Return the paragraphs of running text in a docstring, each one line without markup; possibly none."""
    lines = _iter_lines_without_code(docstring)
    paragraphs = [_remove_markup(" ".join(paragraph)) for paragraph in _join_paragraphs(lines)]
    return [paragraph for paragraph in paragraphs if _is_prose(paragraph)]


class _LineKind(Enum):
    TEXT = auto()
    BREAK = auto()  # ends a paragraph
    BORDER = auto()  # marks a single line above it as a heading


class _DocLine(NamedTuple):
    kind: _LineKind
    text: str = ""
    indent: int | None = None  # None: lines of any indentation continue this one


_PARAGRAPH_BREAK = _DocLine(_LineKind.BREAK)


def _iter_lines_without_code(docstring: str) -> Iterator[_DocLine]:
    """Yield a docstring's lines without code, tables and directives."""
    is_fenced = False
    until_blank = False  # in a doctest or a table
    max_indent: int | None = None  # in a literal block or a directive: lines indented deeper belong to it
    for line in cleandoc(docstring).split("\n"):
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text.startswith(("```", "~~~")):
            is_fenced = not is_fenced
            yield _PARAGRAPH_BREAK
        elif not text:
            until_blank = False
            yield _PARAGRAPH_BREAK
        elif is_fenced or until_blank or (max_indent is not None and indent > max_indent):
            continue
        else:
            max_indent = None
            if text.startswith(">>>"):
                until_blank = True
                yield _PARAGRAPH_BREAK
            elif _is_border(text):
                until_blank = " " in text
                yield _DocLine(_LineKind.BORDER)
            elif text.startswith(".. "):
                yield _PARAGRAPH_BREAK
                name, content = _parse_directive(text)
                if name in _PROSE_DIRECTIVES and content:
                    yield _DocLine(_LineKind.TEXT, content)
                elif name not in _PROSE_DIRECTIVES and name not in _LABEL_DIRECTIVES:
                    max_indent = indent  # code, mathematics, plots, comments, citations
            elif text.startswith("@"):
                yield _PARAGRAPH_BREAK
            else:
                yield _DocLine(_LineKind.TEXT, text, indent)
                if text.endswith("::"):  # a literal block follows
                    max_indent = indent


def _is_border(text: str) -> bool:
    """Return True for the line under a heading, a transition, and a line of a table or of a line block."""
    return bool(text[0] == "|" or _BORDER.match(text) or _TABLE.match(text))


def _parse_directive(text: str) -> tuple[str, str]:
    match = _DIRECTIVE.match(text)
    return (match[1].lower(), match[2]) if match else ("", "")


def _join_paragraphs(lines: Iterator[_DocLine]) -> Iterator[list[str]]:
    """Yield the lines of each paragraph, list item and description of a parameter, without its label."""
    paragraph: list[str] = []
    paragraph_indent: int | None = None
    item_indent: int | None = None  # of the latest list item
    for line in lines:
        if line.kind is _LineKind.BORDER and len(paragraph) == 1:  # a heading
            paragraph = []
        if line.kind is not _LineKind.TEXT:
            yield paragraph
            paragraph = []
            paragraph_indent = None
            continue
        text = line.text
        if not paragraph and (_SECTION.match(text) or _SIGNATURE.match(text)):
            continue
        # A line in the middle of a paragraph may look like `name: text` by accident.
        may_be_label = not paragraph or line.indent == item_indent or paragraph[-1].endswith(":")
        item = _item_text(text, may_be_label)
        if item is not None:
            yield paragraph
            paragraph = []
            paragraph_indent = None
            item_indent = line.indent
            text = item
        else:
            if paragraph_indent not in (None, line.indent):
                yield paragraph
                paragraph = []
            paragraph_indent = line.indent
        if text.endswith("::"):
            text = text.rstrip(": ")
            yield [*paragraph, text if text.endswith(".") else text + ":"]
            paragraph = []
            paragraph_indent = None
        elif text:
            paragraph.append(text)
    yield paragraph


def _item_text(text: str, may_be_label: bool) -> str | None:
    """Return the text of a list item or of a parameter's description without its label; None for other lines."""
    if match := _BULLET.match(text):
        described = _NAMED.match(match[1]) or _DASHED.match(match[1])
        return described[described.re.groups] if described else match[1]
    if match := _FIELD.match(text):
        return "" if match[1] in _TYPE_FIELDS else match[2]
    if " : " in text or text.endswith(" :"):
        return "" if _TYPED.match(text) else None
    if match := _NAMED.match(text):
        return match[2] if match[1] or may_be_label else None
    if may_be_label and (match := _DASHED.match(text)):
        return match[1]
    return None


def _remove_markup(text: str) -> str:
    if "`" in text:
        text = _ROLE.sub(lambda match: _displayed_name(match[1]), text)
        text = _QUOTED.sub(lambda match: _displayed_name(match[1]), text)
    if "[" in text:
        text = _LINK.sub(r"\1", _FOOTNOTE.sub("", text))
    if "*" in text:
        text = _STARRED.sub(r"\1", text)
    return " ".join(text.replace("\\ ", "").split())


def _displayed_name(content: str) -> str:
    """Return the text that a role or link shows: its title, or the last part of a name marked with a tilde."""
    content = _TARGET.sub("", content) or content.strip("<>")
    if content.startswith("~"):
        return content.rsplit(".", 1)[-1].lstrip("~")
    return content.lstrip("!")


def _is_prose(text: str) -> bool:
    """Return True if the text has at least five words and is nearly all plain words, without formulas or templates."""
    words = text.count(" ") + 1
    if words < _MIN_WORDS or "\\" in text or "{" in text or _CODE.match(text):
        return False
    if not (text[0].isalpha() or text[0] in "\"'("):
        return False
    return len(_WORD.findall(text)) >= _MIN_WORD_FRACTION * words
