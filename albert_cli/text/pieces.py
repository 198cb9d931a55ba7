"""Return the pieces of a `tokenizer.json` as text, with the word mark ▁ where a word begins.

Tokenizers show in four ways where a word begins: by a mark on its first piece (▁, or the byte-level Ġ), by a prefix
(WordPiece's ##) on its other pieces, by a suffix (</w>) on its last piece, or by having only whole words as pieces.
A BPE or Unigram tokenizer may also show it in no way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from albert_cli.text.words import WORD_MARK

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BYTE_LEVEL_SPACE: Final = "Ġ"


def pieces_as_text(pieces: Sequence[str], content: Mapping[str, Any], has_mark: bool) -> list[str]:
    """Return the pieces as text, with the word mark where a word begins, and without prefixes and suffixes.

    content: of the `tokenizer.json`; has_mark: from `has_word_mark`. A word also begins after each piece with the
    suffix (`word_suffix`), which the text does not show. Without any sign of words, every piece begins a word.
    """
    prefix = _continuation_prefix(content)
    if prefix:
        return [piece.removeprefix(prefix) if piece.startswith(prefix) else WORD_MARK + piece for piece in pieces]
    suffix = word_suffix(content)
    texts = [piece.removesuffix(suffix) for piece in pieces]
    if is_byte_level(content):
        byte_by_character = _byte_level_alphabet()
        texts = [_decode_byte_level(text, byte_by_character) for text in texts]
    if suffix or has_mark:
        return texts
    return [WORD_MARK + text for text in texts]


def marks_words(content: Mapping[str, Any], has_mark: bool) -> bool:
    """Return True if the pieces show where words begin; the arguments are those of `pieces_as_text`."""
    is_word_level = content["model"]["type"] == "WordLevel"
    return has_mark or is_word_level or bool(_continuation_prefix(content) or word_suffix(content))


def has_word_mark(tokenizer: Tokenizer) -> bool:
    """Return True if the tokenizer replaces the space before a word by a mark (▁ or Ġ) before it splits the word."""
    text = "a a"
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    words = [text]
    if tokenizer.pre_tokenizer is not None:
        words = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    return any(mark in word for word in words for mark in (WORD_MARK, _BYTE_LEVEL_SPACE))


def word_suffix(content: Mapping[str, Any]) -> str:
    """Return the suffix of the last piece of each word in the content of a `tokenizer.json`, "" if there is none."""
    return str(content["model"].get("end_of_word_suffix") or "")


def is_byte_level(content: Mapping[str, Any]) -> bool:
    """Return True if the pre-tokenizer of a `tokenizer.json` is, or contains, a byte-level one, as that of GPT-2."""
    pre_tokenizer = content.get("pre_tokenizer") or {}
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    return any(step.get("type") == "ByteLevel" for step in steps)


def _continuation_prefix(content: Mapping[str, Any]) -> str:
    """Return the prefix, such as ##, of all pieces of a word except its first; "" if there is none."""
    return str(content["model"].get("continuing_subword_prefix") or "")


def _decode_byte_level(piece: str, byte_by_character: Mapping[str, int]) -> str:
    """Return the text of a byte-level piece; incomplete characters become U+FFFD."""
    if not all(character in byte_by_character for character in piece):
        return piece  # an added token
    text = bytes(byte_by_character[character] for character in piece).decode("utf-8", "replace")
    return WORD_MARK + text[1:] if text.startswith(" ") else text


def _byte_level_alphabet() -> dict[str, int]:
    """Return the byte for each character of GPT-2's byte-level alphabet (`bytes_to_unicode` of its code).

    A printable byte is written as the character with its code, the other bytes as the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + number): byte for number, byte in enumerate(unprintable)}
