"""Sentence segmentation by `sentencex`, guarded: no input makes it fail and no character is lost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_SENTENCE_END = re.compile(r"(?<=[.!?…。！？।])[\"'”’»)\]]*(?:\s+|(?<=[。！？]))")
_MAX_PARAGRAPH_CHARACTERS = 1 << 14  # characters


def split_sentences(text: str, language: str = "en") -> list[str]:
    """The sentences of `text`, each with single spaces, in order.

    No sentence crosses a line end. `language` is an ISO 639 code; an unknown one falls back to English rules.
    Apart from white space, the sentences hold every character of the text.
    """
    return segment_paragraphs(split_paragraphs(text), language)


def split_paragraphs(text: str) -> list[str]:
    """The lines of `text` that are not blank, each with single spaces and none at its ends."""
    # No white space but the plain space is printable, in any script: most lines are left as they are.
    found = (
        line if line.isprintable() and "  " not in f" {line} " else " ".join(line.split()) for line in text.split("\n")
    )
    return [line for line in found if line]


def segment_paragraphs(lines: Iterable[str], language: str = "en") -> list[str]:
    """`split_sentences` for what `paragraphs` made."""
    from sentencex import segment

    sentences: list[str] = []
    for line in lines:
        # Spaces are normalised before: sentencex cuts at byte offsets, and panics inside a no-break space.
        for paragraph in split_long_text(
            line, _MAX_PARAGRAPH_CHARACTERS
        ):  # between open quotes sentencex takes quadratic time
            try:
                parts = segment(language, paragraph)
            except BaseException as error:  # a Rust panic is no Exception
                if type(error).__name__ != "PanicException":
                    raise
                parts = split_at_stops(paragraph)
            sentences += [stripped for part in parts if (stripped := part.strip())]
    return sentences


def split_long_text(text: str, longest: int) -> Iterator[str]:
    """The text in parts of at most `longest` characters, cut at line ends, or else at spaces near their ends."""
    start = 0
    while len(text) - start > longest:
        end = start + longest
        cut = max(text.rfind("\n", start, end), text.rfind(" ", max(start, end - (1 << 16)), end)) + 1 or end
        yield text[start:cut]
        start = cut
    if start < len(text):
        yield text[start:]


def split_at_stops(paragraph: str) -> list[str]:
    """Cut after every sentence-ending mark before white space: the rule for what sentencex cannot do."""
    ends = [match.end() for match in _SENTENCE_END.finditer(paragraph)]
    return [paragraph[a:b] for a, b in zip([0, *ends], [*ends, len(paragraph)], strict=True) if a < b]
