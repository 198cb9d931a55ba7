"""Split text into sentences with `sentencex`; no input makes the split fail, and no character is lost.

`sentencex` does not know the stops of Khmer and Tibetan, and Thai and Lao have none. So its results are split further:

1. after the stops of Khmer and Tibetan, and the closing quotes and brackets that follow them;
2. if a sentence is longer than people write (see `_LengthLimits`), after commas and other clause marks, else at spaces,
   else between characters. In Thai, Lao, Khmer, Tibetan and Burmese, a space is a clause mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple
from unicodedata import category

_CLOSING = "[\"'”’»)\\]]"
# A stop, any closing quotes or brackets, and white space, which may be missing after a full-width stop.
_SENTENCE_END = re.compile(rf"(?<=[.!?…。！？।]){_CLOSING}*(?:\s+|(?<=[。！？]))")
_KHMER_AND_TIBETAN_STOPS = "\u17d4\u17d5\u17da\u0f0d\u0f0e\u0f0f\u0f10\u0f11\u0f14"
_UNKNOWN_STOP = re.compile(f"[{_KHMER_AND_TIBETAN_STOPS}]")  # unknown to `sentencex`
# A lookbehind has a fixed width, so there is one for a stop with 0, 1 and 2 closing marks.
_LOOKBEHINDS = "|".join(f"(?<=[{_KHMER_AND_TIBETAN_STOPS}]{_CLOSING * count})" for count in range(3))
# The position after the last of several stops and up to two closing marks, with the white space that follows, but not
# at the end of the text, nor in Khmer's "etc.", which has a stop before and after the letter ល.
_AFTER_STOPS = re.compile(rf"(?:{_LOOKBEHINDS})(?!\s*[{_KHMER_AND_TIBETAN_STOPS}]|{_CLOSING}|\s*$|ល។)(?<!។ល។)\s*")
_CLAUSE_MARKS = ",;:،؛、，；：—"
# The position after marks and spaces, but not after a mark between two digits, as in "29,073"
_CLAUSE_END = re.compile(rf"(?<=[{_CLAUSE_MARKS} ])(?![{_CLAUSE_MARKS} ])(?!(?<=\d[{_CLAUSE_MARKS}])\d)")
_SPACE_MARKED_SCRIPTS = re.compile("[\u0e00-\u109f\u1780-\u17ff]")  # Thai, Lao, Tibetan, Burmese; Khmer
_CHINESE_AND_JAPANESE = re.compile("[\u3040-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_MAX_PARAGRAPH_CHARACTERS = 1 << 14
_SPACE_SEARCH_CHARACTERS = 1 << 16  # distance from the end of a part within which a space is searched for


class _LengthLimits(NamedTuple):
    """Lengths in characters: a sentence longer than `max_sentence` is split into parts of `min_part` or more."""

    max_sentence: int
    min_part: int


_USUAL_LIMITS = _LengthLimits(max_sentence=1000, min_part=200)
_CHINESE_AND_JAPANESE_LIMITS = _LengthLimits(max_sentence=300, min_part=60)  # a word has one to three characters
_SPACE_MARKED_LIMITS = _LengthLimits(max_sentence=200, min_part=60)  # without stops, a whole paragraph is one sentence
_SHORTEST_LIMIT = _SPACE_MARKED_LIMITS.max_sentence  # no sentence up to this length is split, in any script


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Return the sentences of `text` in order, each with single spaces.

    A line end always ends a sentence. Apart from white space, the sentences contain every character of the text.
    language: an ISO 639 code; for an unknown one, the rules of English apply.
    """
    return segment_paragraphs(split_paragraphs(text), language)


def split_paragraphs(text: str) -> list[str]:
    """Return the lines of `text` that are not blank, each with single spaces and none at its ends."""
    paragraphs = []
    for line in text.split("\n"):
        # This test is fast. `isprintable` is False for a line with any white space other than the plain space. With a
        # space added at both ends, the test for two spaces also finds a space at an end of the line.
        if not line.isprintable() or "  " in f" {line} ":
            line = " ".join(line.split())
        if line:
            paragraphs.append(line)
    return paragraphs


def segment_paragraphs(paragraphs: Iterable[str], language: str = "en") -> list[str]:
    """Split paragraphs into sentences; the paragraphs have single spaces, as `split_paragraphs` returns them."""
    segment = _load_segmenter()
    sentences: list[str] = []
    for paragraph in paragraphs:
        # Between open quotes sentencex takes quadratic time, so a paragraph's length is bounded.
        for part in split_long_text(paragraph, _MAX_PARAGRAPH_CHARACTERS):
            has_unknown_stops = not part.isascii() and _UNKNOWN_STOP.search(part) is not None
            # The sentences of a part in ASCII have the usual limit. For other parts `_split_further` chooses the limit
            # by script, so it is called for every sentence that is longer than the shortest limit.
            limit = _USUAL_LIMITS.max_sentence if part.isascii() else _SHORTEST_LIMIT
            for sentence in segment(language, part):
                if has_unknown_stops or len(sentence) > limit:
                    sentences += _split_further(sentence)
                elif stripped := sentence.strip():
                    sentences.append(stripped)
    return sentences


def _split_further(sentence: str) -> Iterator[str]:
    """Split a sentence of `sentencex` after Khmer and Tibetan stops, and long parts after clauses.

    The parts have no white space at their ends, and none is empty.
    """
    for part in _AFTER_STOPS.split(sentence):
        stripped = part.strip()
        if len(stripped) > _SHORTEST_LIMIT:
            yield from _split_clauses(stripped, _choose_limits(stripped))
        elif stripped:
            yield stripped


def _choose_limits(sentence: str) -> _LengthLimits:
    """Return the limits for the script of more than half of the characters, else the usual ones."""
    if sentence.isascii():
        return _USUAL_LIMITS
    if len(_SPACE_MARKED_SCRIPTS.findall(sentence)) > len(sentence) // 2:
        return _SPACE_MARKED_LIMITS
    if len(_CHINESE_AND_JAPANESE.findall(sentence)) > len(sentence) // 2:
        return _CHINESE_AND_JAPANESE_LIMITS
    return _USUAL_LIMITS


def _split_clauses(sentence: str, limits: _LengthLimits) -> Iterator[str]:
    """Split a sentence that is too long after clause marks, else at spaces, else between characters.

    A part ends at the first clause mark at which it has `limits.min_part` characters or more.
    """
    if len(sentence) <= limits.max_sentence:
        yield sentence
        return
    part = ""
    # A chunk is a word with the marks and spaces after it. In a script without spaces, it is a whole clause.
    for chunk in _CLAUSE_END.split(sentence):
        if part and len(part) + len(chunk) > limits.max_sentence:
            yield part.strip()
            part = ""
        part += chunk
        while len(part) > limits.max_sentence:  # the chunk alone is too long
            end = _character_boundary(part, limits.max_sentence)
            yield part[:end].strip()
            part = part[end:]
        # In the scripts of `_SPACE_MARKED_LIMITS`, the space after every clause is a mark.
        ends_at_mark = limits is _SPACE_MARKED_LIMITS or part.rstrip()[-1:] in _CLAUSE_MARKS
        if len(part) >= limits.min_part and ends_at_mark:
            yield part.strip()
            part = ""
    if part.strip():
        yield part.strip()


def _character_boundary(text: str, limit: int) -> int:
    """Return a position at or before `limit` at which a split separates no character from its marks or vowel signs.

    It is the last such position in the second half of the text up to `limit`. Without one, return `limit`.
    """
    for position in range(limit, limit // 2, -1):
        if category(text[position]) not in ("Mn", "Mc"):
            return position
    return limit


@cache
def _load_segmenter() -> Callable[[str, str], list[str]]:
    """Return sentencex's function, replaced by `split_at_stops` where it panics, such as at some no-break spaces."""
    from sentencex import segment

    def segment_safely(language: str, paragraph: str) -> list[str]:
        try:
            return list(segment(language, paragraph))
        except BaseException as error:  # a Rust panic is not an `Exception`
            if type(error).__name__ != "PanicException":
                raise
            return split_at_stops(paragraph)

    return segment_safely


def split_long_text(text: str, max_characters: int) -> Iterator[str]:
    """Yield the text in parts of at most `max_characters`.

    A part ends after its last line end or after the last space among its last 65,536 characters, whichever comes later.
    If it has neither, it ends within a word.
    """
    start = 0
    while len(text) - start > max_characters:
        limit = start + max_characters
        line_end = text.rfind("\n", start, limit)
        space = text.rfind(" ", max(start, limit - _SPACE_SEARCH_CHARACTERS), limit)
        last_white_space = max(line_end, space)
        end = limit if last_white_space == -1 else last_white_space + 1
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def split_at_stops(paragraph: str) -> list[str]:
    """Split a paragraph after every stop before white space, and after every full-width stop."""
    ends = [match.end() for match in _SENTENCE_END.finditer(paragraph)]
    bounds = zip([0, *ends], [*ends, len(paragraph)], strict=True)
    return [paragraph[start:end] for start, end in bounds if start < end]
