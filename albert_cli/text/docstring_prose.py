"""From a docstring (reStructuredText, numpydoc, Google's, Markdown) to the sentences a person would read aloud."""

from __future__ import annotations

import re
from inspect import cleandoc
from math import inf

_BORDER = re.compile(r"""([=\-~^"*+#.`:_])\1{2,}$""")  # under a heading, or a transition
_TABLE = re.compile(r"[=\-+|][=\-+| ]{4,}$")
_DIRECTIVE = re.compile(r"\.\. +([\w:-]+?)::\s*(.*)")
_PROSE_DIRECTIVES = {"note", "warning", "tip", "important", "caution", "attention", "hint", "danger"}
_LABEL_DIRECTIVES = {"versionadded", "versionchanged", "deprecated", "seealso", "rubric", "topic", "admonition"}
_FIELD = re.compile(
    r":(param|parameter|arg|argument|key|keyword|raises?|except|exception|returns?|yields?|[ic]?var"
    r"|type|rtype|vartype|meta)\b[^:`]*:\s*(.*)"
)
_TYPED = re.compile(r"[\w*`'\"{}.,/ ]+ : ?(?:\S|$)")  # numpydoc: `axis : int, optional`
_NAMED = re.compile(r"[`*]*[\w.]+[`*]*( ?\([^()]*\))?:(?:\s+|$)(.*)")  # Google: `axis (int): The axis.`
_DASHED = re.compile(r"['\"`*]*[\w.*()=]+['\"`*]*(?:, \S+)? +--? +(.*)")  # `axis -- the axis`
_SECTION = re.compile(r"[A-Z][\w ]{0,30}:$")
_BULLET = re.compile(r"(?:[-*+•]|\(?\d{1,2}[.)]|\(?[a-z]\))\s+(.*)")
_SIGNATURE = re.compile(r"[\w.]+\(.*\)?(?: ?-> ?.*|:)?$")

_ROLE = re.compile(r":[\w:.+-]+:`([^`]*)`")
_QUOTED = re.compile(r"``?([^`]+?)``?_{0,2}")
_TARGET = re.compile(r"\s*<[^<>]*>$")
_LINK = re.compile(r"\[([^\]]+)\](?:\([^)]*\))?")
_FOOTNOTE = re.compile(r"\s*\[#?[\w-]*\]_")
_STARRED = re.compile(r"(?<![\w*])\*{1,2}([^*\s](?:[^*]*[^*\s])?)\*{1,2}(?![\w*])")
_CODE = re.compile(r"(?:import|from \S+ import|def|class|return|await|async) |\S+ = ")
_WORD = re.compile(r"""(?<![^\s("'])[A-Za-z][A-Za-z'-]*(?=[\s,.;:!?)"']|$)""")


def extract_prose(docstring: str) -> list[str]:
    """The paragraphs of running text in a docstring, each one line, without markup; possibly none."""
    reader = _Reader()
    for line in cleandoc(docstring).split("\n"):
        reader.read(line)
    reader.end_paragraph()
    return reader.paragraphs


class _Reader:
    """Takes the lines of one docstring and rejoins hard-wrapped paragraphs."""

    def __init__(self) -> None:
        self.paragraphs: list[str] = []
        self._lines: list[str] = []
        self._indent = -1  # of the paragraph's lines; -1: not known yet
        self._item_indent = -1  # where the latest list item began; -1: outside lists
        self._skipped_below = inf  # leave out lines indented deeper than this
        self._until_blank = False  # leave out lines up to a blank one
        self._in_fence = False

    def read(self, line: str) -> None:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text.startswith(("```", "~~~")):
            self.end_paragraph()
            self._in_fence = not self._in_fence
        elif not text:
            self.end_paragraph()
            self._until_blank = False
        elif not self._in_fence and not self._until_blank and indent <= self._skipped_below:
            self._skipped_below = inf
            self._read_text(text, indent)

    def _read_text(self, text: str, indent: int) -> None:
        if self._is_markup(text, indent):
            return
        if (item := self._item(text, indent)) is not None:
            self.end_paragraph()
            self._item_indent, text = indent, item
        else:
            if self._indent not in (-1, indent):
                self.end_paragraph()
            self._indent = indent
        if text.endswith("::"):  # a literal block follows, indented deeper
            text = text.rstrip(": ")
            self._lines.append(text if text.endswith(".") else text + ":")
            self.end_paragraph()
            self._skipped_below = indent
        elif text:
            self._lines.append(text)

    def _is_markup(self, text: str, indent: int) -> bool:
        """Whether the line is no text; says how far what belongs to it reaches."""
        first = text[0]
        if first == ">" and text.startswith(">>>"):
            self.end_paragraph()
            self._until_blank = True
        elif first in '=-~^"*+#.`:_|' and (_BORDER.match(text) or _TABLE.match(text) or first == "|"):
            if len(self._lines) > 1:
                self.end_paragraph()
            self._lines = []  # one line above a border is a heading
            self._until_blank = " " in text
        elif first == "." and text.startswith(".. "):
            self.end_paragraph()
            found = _DIRECTIVE.match(text)
            name = found[1].lower() if found else ""
            if found and name in _PROSE_DIRECTIVES and found[2]:
                self._lines = [found[2]]
            elif name not in _PROSE_DIRECTIVES and name not in _LABEL_DIRECTIVES:
                self._skipped_below = indent  # code, mathematics, plots, comments, citations
        elif first == "@" or (not self._lines and (_SECTION.match(text) or _SIGNATURE.match(text))):
            self.end_paragraph()
        else:
            return False
        return True

    def _item(self, text: str, indent: int) -> str | None:
        """The text of a list item or of a described parameter, without its label; None for other lines."""
        if found := _BULLET.match(text):
            inner = _NAMED.match(found[1]) or _DASHED.match(found[1])
            return inner[inner.re.groups] if inner else found[1]
        if found := _FIELD.match(text):
            return "" if found[1] in ("type", "rtype", "vartype", "meta") else found[2]
        if " : " in text or text.endswith(" :"):
            return "" if _TYPED.match(text) else None
        # A line in the middle of a paragraph may look like `name: text` by accident.
        is_start = not self._lines or indent == self._item_indent or self._lines[-1].endswith(":")
        if found := _NAMED.match(text):
            return found[2] if found[1] or is_start else None
        found = _DASHED.match(text) if is_start else None
        return found[1] if found else None

    def end_paragraph(self) -> None:
        """Close the paragraph and keep it if it reads as prose."""
        if self._lines:
            text = _without_markup(" ".join(self._lines))
            if _is_prose(text):
                self.paragraphs.append(text)
        self._lines, self._indent = [], -1


def _without_markup(text: str) -> str:
    if "`" in text:
        text = _ROLE.sub(lambda found: _target_name(found[1]), text)
        text = _QUOTED.sub(lambda found: _target_name(found[1]), text)
    if "[" in text:
        text = _LINK.sub(r"\1", _FOOTNOTE.sub("", text))
    if "*" in text:
        text = _STARRED.sub(r"\1", text)
    return " ".join(text.replace("\\ ", "").split())


def _target_name(content: str) -> str:
    """What a role or link shows: its title, or the last part of a name marked with a tilde."""
    content = _TARGET.sub("", content) or content.strip("<>")
    return content.rsplit(".", 1)[-1].lstrip("~") if content.startswith("~") else content.lstrip("!")


def _is_prose(text: str) -> bool:
    """At least five words, and nearly everything a plain word; no formulas, no templates."""
    words = text.count(" ") + 1
    if words < 5 or "\\" in text or "{" in text or _CODE.match(text) or not (text[0].isalpha() or text[0] in "\"'("):
        return False
    return len(_WORD.findall(text)) >= 0.75 * words
