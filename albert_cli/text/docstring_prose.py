"""Extract running text from docstrings, for the corpus of installed documentation (`docs:`).

The input is a docstring in reStructuredText, numpydoc, Google style or Markdown. The output is its prose: paragraphs,
list items and descriptions of parameters, without code, tables, headings and markup. Three steps produce it:

1. `_iter_lines_without_code` drops code, tables and directives;
2. `_join_paragraphs` joins the remaining lines to paragraphs and removes the labels of list items and parameters;
3. `_remove_markup` cleans each paragraph, and `_is_prose` decides if it is running text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from inspect import cleandoc
from typing import NamedTuple

# Kinds of lines
_BORDER = re.compile(r"""([=\-~^"*+#.`:_])\1{2,}$""")  # `======`: under a heading, or a transition
_TABLE_BORDER = re.compile(r"[=\-+|][=\-+| ]{4,}$")  # `===== =====` or `+---+---+`
_DIRECTIVE = re.compile(r"\.\. +([\w:-]+?)::\s*(.*)")  # `.. note:: Some text.`
_SECTION = re.compile(r"[A-Z][\w ]{0,30}:$")  # `Returns:`
_SIGNATURE = re.compile(r"[\w.]+\(.*\)?(?: ?-> ?.*|:)?$")  # `normalize(a, axis=-1) -> ndarray`
_PROSE_DIRECTIVES = {"note", "warning", "tip", "important", "caution", "attention", "hint", "danger"}
# The content of these directives is prose, too, but the text after the colons is a version or a title.
_LABEL_DIRECTIVES = {"versionadded", "versionchanged", "deprecated", "seealso", "rubric", "topic", "admonition"}

# List items and descriptions of parameters
_BULLET = re.compile(r"(?:[-*+•]|\(?\d{1,2}[.)]|\(?[a-z]\))\s+(.*)")  # `- The item`, `(2) The item`
_FIELD = re.compile(  # Sphinx: `:param axis: The axis.`
    r":(param|parameter|arg|argument|key|keyword|raises?|except|exception|returns?|yields?|[ic]?var"
    r"|type|rtype|vartype|meta)\b[^:`]*:\s*(.*)"
)
_TYPE_FIELDS = ("type", "rtype", "vartype", "meta")
_TYPED_PARAMETER = re.compile(r"[\w*`'\"{}.,/ ]+ : ?(?:\S|$)")  # numpydoc: `axis : int, optional`
_NAMED_PARAMETER = re.compile(r"[`*]*[\w.]+[`*]*( ?\([^()]*\))?:(?:\s+|$)(.*)")  # Google: `axis (int): The axis.`
_DASHED_PARAMETER = re.compile(r"['\"`*]*[\w.*()=]+['\"`*]*(?:, \S+)? +--? +(.*)")  # `axis -- the axis`

# Markup within a line
_ROLE = re.compile(r":[\w:.+-]+:`([^`]*)`")  # :func:`numpy.dot`
_QUOTED = re.compile(r"``?([^`]+?)``?_{0,2}")  # ``code``, `name`, and `a link <https://…>`_
_LINK_TARGET = re.compile(r"\s*<[^<>]*>$")  # the end of `a link <https://…>`
_MARKDOWN_LINK = re.compile(r"\[([^\]]+)\](?:\([^)]*\))?")  # [a link](https://…)
_FOOTNOTE = re.compile(r"\s*\[#?[\w-]*\]_")  # [1]_
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}([^*\s](?:[^*]*[^*\s])?)\*{1,2}(?![\w*])")  # *one*, **two**

# Prose
_CODE = re.compile(r"(?:import|from \S+ import|def|class|return|await|async) |\S+ = ")
_PLAIN_WORD = re.compile(r"""(?<![^\s("'])[A-Za-z][A-Za-z'-]*(?=[\s,.;:!?)"']|$)""")
_MIN_WORDS = 5  # a shorter paragraph is rarely a sentence
_MIN_PLAIN_FRACTION = 0.75  # of the words; a paragraph with more symbols, numbers and names is rarely prose


def extract_prose(docstring: str) -> list[str]:
    """Return the paragraphs of running text in a docstring, each as one line without markup; possibly none."""
    lines = _iter_lines_without_code(docstring)
    paragraphs = [_remove_markup(" ".join(paragraph)) for paragraph in _join_paragraphs(lines)]
    return [paragraph for paragraph in paragraphs if _is_prose(paragraph)]


class _LineKind(Enum):
    TEXT = auto()
    BREAK = auto()  # ends a paragraph
    BORDER = auto()  # ends a paragraph, or marks a single line above it as a heading


class _DocLine(NamedTuple):
    """A line that is not code; indent: the number of its leading spaces, None for the text of a directive."""

    kind: _LineKind
    text: str = ""
    indent: int | None = None


_PARAGRAPH_BREAK = _DocLine(_LineKind.BREAK)


def _iter_lines_without_code(docstring: str) -> Iterator[_DocLine]:
    """Yield a docstring's lines without code, tables and directives."""
    is_fenced = False  # in a Markdown code block
    is_in_example = False  # in a doctest or a table, which end at a blank line
    # The indentation of the line that opens a literal block or directive; deeper lines belong to the block.
    block_indent: int | None = None
    for line in cleandoc(docstring).split("\n"):
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text.startswith(("```", "~~~")):
            is_fenced = not is_fenced
            yield _PARAGRAPH_BREAK
            continue
        if not text:
            is_in_example = False
            yield _PARAGRAPH_BREAK
            continue
        if is_fenced or is_in_example or (block_indent is not None and indent > block_indent):
            continue
        block_indent = None
        if text.startswith(">>>"):
            is_in_example = True
            yield _PARAGRAPH_BREAK
        elif _is_border(text):
            is_in_example = " " in text  # only the borders of tables have spaces
            yield _DocLine(_LineKind.BORDER)
        elif text.startswith(".. "):
            yield _PARAGRAPH_BREAK
            name, content = _parse_directive(text)
            if name in _PROSE_DIRECTIVES and content:
                yield _DocLine(_LineKind.TEXT, content)
            elif name not in _PROSE_DIRECTIVES and name not in _LABEL_DIRECTIVES:
                block_indent = indent  # code, mathematics, plots, comments, citations
        elif text.startswith("@"):  # an epydoc field or a decorator
            yield _PARAGRAPH_BREAK
        else:
            yield _DocLine(_LineKind.TEXT, text, indent)
            if text.endswith("::"):  # a literal block follows
                block_indent = indent


def _is_border(text: str) -> bool:
    """Return True for the line under a heading, a transition, and a line of a table or of a line block."""
    return bool(text[0] == "|" or _BORDER.match(text) or _TABLE_BORDER.match(text))


def _parse_directive(text: str) -> tuple[str, str]:
    """Return the name of a directive and the text after its colons; two empty strings for a comment or citation."""
    match = _DIRECTIVE.match(text)
    return (match[1].lower(), match[2]) if match else ("", "")


def _join_paragraphs(lines: Iterator[_DocLine]) -> Iterator[list[str]]:
    """Yield the lines of each paragraph, list item and description of a parameter, without its label.

    A paragraph ends at a break, at a list item or label, at a change of the indentation, and at "::". Some of the
    yielded lists are empty.
    """
    paragraph: list[str] = []
    paragraph_indent: int | None = None
    item_indent: int | None = None  # of the latest list item
    for line in lines:
        if line.kind is not _LineKind.TEXT:
            is_heading = line.kind is _LineKind.BORDER and len(paragraph) == 1
            if not is_heading:
                yield paragraph
            paragraph = []
            paragraph_indent = None
            continue
        text = line.text
        if not paragraph and (_SECTION.match(text) or _SIGNATURE.match(text)):
            continue
        # A line in the middle of a paragraph may look like `name: text` by accident, so it is no label there.
        may_be_label = not paragraph or line.indent == item_indent or paragraph[-1].endswith(":")
        item = _item_text(text, may_be_label=may_be_label)
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
        if text.endswith("::"):  # before a literal block; reStructuredText shows "::" as ":"
            text = text.rstrip(": ")
            if not text.endswith("."):
                text += ":"
            yield [*paragraph, text]
            paragraph = []
            paragraph_indent = None
        elif text:
            paragraph.append(text)
    yield paragraph


def _item_text(text: str, *, may_be_label: bool) -> str | None:
    """Return the text of a list item or of a parameter's description without its label; None for other lines.

    A label without a description, such as `axis : int`, gives "".
    """
    if match := _BULLET.match(text):
        item = match[1]
        if parameter := _NAMED_PARAMETER.match(item):
            return parameter[2]
        if parameter := _DASHED_PARAMETER.match(item):
            return parameter[1]
        return item
    if match := _FIELD.match(text):
        return "" if match[1] in _TYPE_FIELDS else match[2]
    if " : " in text or text.endswith(" :"):
        return "" if _TYPED_PARAMETER.match(text) else None
    if match := _NAMED_PARAMETER.match(text):
        has_type = match[1] is not None
        return match[2] if has_type or may_be_label else None
    if may_be_label and (match := _DASHED_PARAMETER.match(text)):
        return match[1]
    return None


def _remove_markup(text: str) -> str:
    """Return the text without the markup of reStructuredText and Markdown, with single spaces."""
    # The tests for a character are much faster than the patterns, and most paragraphs contain no markup.
    if "`" in text:
        text = _ROLE.sub(lambda match: _displayed_name(match[1]), text)
        text = _QUOTED.sub(lambda match: _displayed_name(match[1]), text)
    if "[" in text:
        text = _MARKDOWN_LINK.sub(r"\1", _FOOTNOTE.sub("", text))
    if "*" in text:
        text = _EMPHASIS.sub(r"\1", text)
    return " ".join(text.replace("\\ ", "").split())


def _displayed_name(content: str) -> str:
    """Return the text that a role or link shows: its title, or the last part of a name marked with a tilde."""
    content = _LINK_TARGET.sub("", content) or content.strip("<>")
    if content.startswith("~"):
        return content.rsplit(".", 1)[-1].lstrip("~")
    return content.lstrip("!")  # Sphinx makes no link of a name after "!"


def _is_prose(text: str) -> bool:
    """Return True if the text has at least five words, most of them plain, and no sign of code, formula or template."""
    words = text.count(" ") + 1
    if words < _MIN_WORDS or "\\" in text or "{" in text or _CODE.match(text):
        return False
    if not (text[0].isalpha() or text[0] in "\"'("):
        return False
    return len(_PLAIN_WORD.findall(text)) >= _MIN_PLAIN_FRACTION * words
