"""Split text into sentences with `sentencex`, guarded: no input makes it fail, and no character is lost.

`sentencex` knows no stops of Khmer and Tibetan, and Thai and Lao have none. So its sentences are split further:

1. after the stops of Khmer and Tibetan;
2. where a sentence is longer than anybody writes one, after commas and other clause marks, else at spaces, else
   between characters. In Thai, Lao, Khmer, Tibetan and Burmese, a space is a clause mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple
from unicodedata import category, combining

_SENTENCE_END = re.compile(r"(?<=[.!?…。！？।])[\"'”’»)\]]*(?:\s+|(?<=[。！？]))")
_KHMER_AND_TIBETAN_STOPS = "\u17d4\u17d5\u17da\u0f0d\u0f0e\u0f0f\u0f10\u0f11\u0f14"
_STOPS = re.compile(f"[{_KHMER_AND_TIBETAN_STOPS}]")
_AFTER_STOPS = re.compile(rf"(?<=[{_KHMER_AND_TIBETAN_STOPS}])(?!\s*[{_KHMER_AND_TIBETAN_STOPS}]|\s*$)\s*")
_CLAUSE_MARKS = ",;:،؛、，；：—"
_CLAUSE_ENDS = re.compile(rf"(?<=[{_CLAUSE_MARKS} ])(?![{_CLAUSE_MARKS} ])")
_SCRIPTS_WITHOUT_STOPS = re.compile("[\u0e00-\u109f\u1780-\u17ff]")  # Thai, Lao, Tibetan, Burmese; Khmer
_CHINESE_AND_JAPANESE = re.compile("[\u3040-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
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
    segment = _load_segmenter()
    sentences: list[str] = []
    for paragraph in paragraphs:
        # Between open quotes sentencex takes quadratic time, so a paragraph's length is bounded.
        for part in split_long_text(paragraph, _MAX_PARAGRAPH_CHARACTERS):
            has_stops = not part.isascii() and _STOPS.search(part) is not None
            limit = _USUAL_LENGTHS.longest if part.isascii() else _SHORTEST_LIMIT
            for sentence in segment(language, part):
                if has_stops or len(sentence) > limit:
                    sentences += _split_further(sentence)
                elif stripped := sentence.strip():
                    sentences.append(stripped)
    return sentences


class _Lengths(NamedTuple):
    """The longest sentence in characters, and the least length of the parts of a longer one."""

    longest: int
    part: int


_SHORTEST_LIMIT = 200
_USUAL_LENGTHS = _Lengths(1000, 200)


def _split_further(sentence: str) -> Iterator[str]:
    """Yield a sentence of `sentencex`, or its parts, without white space at their ends; nothing for blank ones."""
    for part in _AFTER_STOPS.split(sentence) if _STOPS.search(sentence) else [sentence]:
        stripped = part.strip()
        if len(stripped) > _SHORTEST_LIMIT:
            yield from _split_clauses(stripped, _choose_lengths(stripped))
        elif stripped:
            yield stripped


def _choose_lengths(sentence: str) -> _Lengths:
    if sentence.isascii():
        return _USUAL_LENGTHS
    if len(_SCRIPTS_WITHOUT_STOPS.findall(sentence)) > len(sentence) // 2:
        return _Lengths(_SHORTEST_LIMIT, 60)
    if len(_CHINESE_AND_JAPANESE.findall(sentence)) > len(sentence) // 2:
        return _Lengths(300, 60)
    return _USUAL_LENGTHS


def _split_clauses(sentence: str, lengths: _Lengths) -> Iterator[str]:
    """Yield the clauses of a sentence that is too long, joined to parts of a readable length."""
    if len(sentence) <= lengths.longest:
        yield sentence
        return
    is_space_a_mark = lengths.longest == _SHORTEST_LIMIT
    part = ""
    for clause in _CLAUSE_ENDS.split(sentence):
        if part and len(part) + len(clause) > lengths.longest:
            yield part.strip()
            part = ""
        part += clause
        while len(part) > lengths.longest:
            end = _character_boundary(part, lengths.longest)
            yield part[:end].strip()
            part = part[end:]
        if len(part) >= lengths.part and (is_space_a_mark or part.rstrip()[-1:] in _CLAUSE_MARKS):
            yield part.strip()
            part = ""
    if part.strip():
        yield part.strip()


def _character_boundary(text: str, limit: int) -> int:
    """Return the last position up to `limit` that is not before a combining mark or a vowel sign."""
    for position in range(limit, limit // 2, -1):
        if not combining(text[position]) and category(text[position]) not in ("Mn", "Mc"):
            return position
    return limit


@cache
def _load_segmenter() -> Callable[[str, str], list[str]]:
    """Return sentencex's function; where it panics, in a no-break space for example, stops end the sentences."""
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
