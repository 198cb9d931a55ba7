"""Guess the encoding of a text that is not UTF-8, such as WINDOWS-1252, for the hint of an error.

The names of encodings are names of Python's codecs that iconv of glibc also accepts.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

SAMPLE_BYTES = 1 << 16  # from which the encoding is guessed
_MIN_INVALID_SEQUENCES = 8  # fewer characters outside ASCII do not show an encoding
_DEFAULT = "WINDOWS-1252"
# Encodings of the Latin script. Most of their texts are valid in several of them, so all that fit are listed.
_LATIN = (_DEFAULT, "WINDOWS-1250", "ISO-8859-2", "WINDOWS-1254", "WINDOWS-1257", "CP850", "CP852", "MACINTOSH")
_OTHER_SCRIPTS = (
    *("WINDOWS-1251", "KOI8-R", "KOI8-U", "CP866", "ISO-8859-5"),
    *("WINDOWS-1253", "ISO-8859-7", "WINDOWS-1255", "ISO-8859-8", "WINDOWS-1256", "ISO-8859-6", "CP874"),
    *("CP932", "EUC-JP", "GB18030", "BIG5", "CP949"),
)
_MIN_KANA = 0.2  # of the characters outside ASCII; text in Chinese or Korean has none
_WORD = re.compile(rb"[A-Za-z\x80-\xff]{0,30}[\x80-\xff][A-Za-z\x80-\xff]{0,30}")  # a longer word is cut
_KANA = re.compile("[\u3041-\u30ff]")
_AFTER_SMALL_LETTER = re.compile(r"(?<=[a-z])[^\x00-\x7f]")
_PROSE_MARKS = "’‘“”„»«–—…"
_MIN_PLAUSIBLE = 0.5  # fraction of the characters after small letters
_MIN_OF_BEST = 0.9  # of the fraction in the most plausible encoding
_CONTROLS = re.compile("[\x80-\x9f]")


def suggest_conversion(sample: bytes) -> str:
    """Return the command that converts a text to UTF-8, with the encodings that the bytes fit if they show any.

    For a sample with NUL bytes, the result is that the file is probably no text.

    sample: the first line that is not UTF-8, and the lines after it. The first 64 KiB are used.
    """
    sample = _limit(sample)
    if b"\0" in sample:  # only UTF-16 and UTF-32 have NUL bytes in texts, and most such texts are recognized before
        return f"it contains NUL bytes, so it is not a text file (or it is UTF-16: {_command('UTF-16LE')})"
    encodings: list[str] = []
    if _is_euc_jp(sample):  # many pairs of its bytes are valid UTF-8, so this test is first
        encodings = ["EUC-JP"]
    elif _is_legacy(sample):
        encodings = _guess_encodings(sample)
    if not encodings:
        return f"convert it, for example: {_command(_DEFAULT)}"
    if len(encodings) == 1:
        return f"it may be in {encodings[0]}; convert it: {_command(encodings[0])}"

    word = _find_distinctive_word(sample, encodings)
    readings = ", ".join(f"{encoding} ({word.decode(encoding, 'replace')})" for encoding in encodings)
    return f"its bytes fit {readings}; convert it from the encoding whose word is right: {_command(encodings[0])}"


def _limit(sample: bytes) -> bytes:
    """Return the first 64 KiB of a sample, up to the end of a character in every encoding of this module.

    A character that is cut makes a sample invalid. Bytes below 0x30, such as line feeds and blanks, are never a part of
    a longer character. If none is in the second half, the result may end inside a character.
    """
    if len(sample) <= SAMPLE_BYTES:
        return sample
    end = 1 + max(sample.rfind(byte, 0, SAMPLE_BYTES) for byte in range(0x30))
    return sample[: end if end > SAMPLE_BYTES // 2 else SAMPLE_BYTES]


def _find_distinctive_word(sample: bytes, encodings: Sequence[str]) -> bytes:
    """Return the word of a sample that differs most between the encodings."""

    def rank(word: bytes) -> tuple[int, int, int]:
        readings = {word.decode(encoding, "replace") for encoding in encodings}
        return len(readings), _count_high_bytes(word), len(word)

    words: list[bytes] = _WORD.findall(sample)
    return max(words, key=rank)


def _command(encoding: str) -> str:
    return f"iconv -f {encoding} -t UTF-8"


def _is_legacy(sample: bytes) -> bool:
    """Return True if a text is in another encoding, and False if it is UTF-8 with some damage."""
    invalid_sequences = sample.decode("utf-8", errors="replace").count("\ufffd")
    valid_bytes = len(sample.decode("utf-8", errors="ignore").encode())
    ascii_bytes = len(sample.decode("ascii", errors="ignore"))
    return invalid_sequences >= _MIN_INVALID_SEQUENCES and invalid_sequences > valid_bytes - ascii_bytes


def _is_euc_jp(sample: bytes) -> bool:
    text = _decode(sample, "EUC-JP") or ""
    characters = sum(not character.isascii() for character in text)
    return characters >= _MIN_INVALID_SEQUENCES and len(_KANA.findall(text)) > _MIN_KANA * characters


def _guess_encodings(sample: bytes) -> list[str]:
    """Return the encodings that a sample fits, the most probable one first."""
    # In the Latin script, the words with letters outside ASCII consist mostly of ASCII letters.
    words = b"".join(_WORD.findall(sample))
    if 2 * _count_high_bytes(words) < len(words):
        return _fitting_latin(sample)
    # Imported late, because the package is needed only for this message.
    from charset_normalizer import from_bytes

    codec_names = {codecs.lookup(name).name.replace("-", "_"): name for name in (*_LATIN, *_OTHER_SCRIPTS)}
    guesses = list(from_bytes(sample, cp_isolation=list(codec_names)))  # the most probable one first
    # Texts in Hebrew and Arabic are plausible in several encodings, too.
    encodings = [
        codec_names[guess.encoding]
        for guess in guesses
        if guess.chaos <= guesses[0].chaos and guess.coherence >= guesses[0].coherence / 2
    ]
    return _fitting_latin(sample) if encodings and encodings[0] in _LATIN else encodings


def _fitting_latin(sample: bytes) -> list[str]:
    """Return the encodings of the Latin script that give a plausible text, one for each different text.

    In a wrong encoding, symbols and capitals follow small letters.
    """
    encodings: dict[str, str] = {}
    for encoding in _LATIN:
        text = _decode(sample, encoding)
        if text is not None and not _CONTROLS.search(text):
            encodings.setdefault(text, encoding)
    fractions = {encoding: _plausible_fraction(text) for text, encoding in encodings.items()}
    minimum = max(_MIN_PLAUSIBLE, _MIN_OF_BEST * max(fractions.values(), default=0))
    return [encoding for encoding, fraction in fractions.items() if fraction >= minimum]


def _plausible_fraction(text: str) -> float:
    """Return the fraction of plausible characters among the characters outside ASCII that follow small ASCII letters.

    Small letters and marks such as quotes are plausible. Returns 1 if no such characters follow.
    """
    following = _AFTER_SMALL_LETTER.findall(text)
    plausible = sum(character.islower() or character in _PROSE_MARKS for character in following)
    return plausible / len(following) if following else 1.0


def _decode(sample: bytes, encoding: str) -> str | None:
    """Return the decoded sample without an incomplete last character; None if it is not valid in the encoding."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(sample)
    except UnicodeDecodeError:
        return None


def _count_high_bytes(word: bytes) -> int:
    return sum(byte >= 0x80 for byte in word)
