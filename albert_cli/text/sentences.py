"""Split text into sentences with `sentencex`, guarded: no input makes it fail, and no character is lost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_SENTENCE_END = re.compile(r"(?<=[.!?…。！？।])[\"'”’»)\]]*(?:\s+|(?<=[。！？]))")
_MAX_PARAGRAPH_CHARACTERS = 1 << 14
_SPACE_SEARCH_CHARACTERS = 1 << 16  # how far before the limit a space is searched for


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Return the sentences of `text` in order, each with single spaces.

    No sentence crosses a line end. `language` is an ISO 639 code; an unknown one uses the rules of English. Apart from
    white space, the sentences contain every character of the text.
    """
    return segment_paragraphs(split_paragraphs(text), language)


def split_paragraphs(text: str) -> list[str]:
    """Return the lines of `text` that are not blank, each with single spaces and none at its ends."""
    paragraphs = []
    for line in text.split("\n"):
        # In every script, the plain space is the only printable white space: most lines need no work.
        if not line.isprintable() or "  " in f" {line} ":
            line = " ".join(line.split())
        if line:
            paragraphs.append(line)
    return paragraphs


def segment_paragraphs(paragraphs: Iterable[str], language: str = "en") -> list[str]:
    """Split paragraphs with single spaces, as `split_paragraphs` returns them, into sentences."""
    sentences: list[str] = []
    for paragraph in paragraphs:
        # Between open quotes sentencex takes quadratic time, so a paragraph's length is bounded.
        for part in split_long_text(paragraph, _MAX_PARAGRAPH_CHARACTERS):
            stripped = (sentence.strip() for sentence in _segment(part, language))
            sentences += [sentence for sentence in stripped if sentence]
    return sentences


def _segment(paragraph: str, language: str) -> list[str]:
    """Split with sentencex or, if it panics, at sentence-ending marks; it panics in a no-break space, for example."""
    from sentencex import segment

    try:
        return list(segment(language, paragraph))
    except BaseException as error:  # a Rust panic is not an `Exception`
        if type(error).__name__ != "PanicException":
            raise
        return split_at_stops(paragraph)


def split_long_text(text: str, max_characters: int) -> Iterator[str]:
    """Yield the text in parts of at most `max_characters`, split at line ends, or else at spaces near their ends."""
    start = 0
    while len(text) - start > max_characters:
        limit = start + max_characters
        line_end = text.rfind("\n", start, limit)
        space = text.rfind(" ", max(start, limit - _SPACE_SEARCH_CHARACTERS), limit)
        end = max(line_end, space) + 1 or limit
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def split_at_stops(paragraph: str) -> list[str]:
    """Split after every sentence-ending mark before white space, where sentencex fails."""
    ends = [match.end() for match in _SENTENCE_END.finditer(paragraph)]
    bounds = zip([0, *ends], [*ends, len(paragraph)], strict=True)
    return [paragraph[start:end] for start, end in bounds if start < end]
