"""Write the vocabulary for other programs: `tokenizer.json` and `tokenizer_config.json` of Hugging Face.

With `spiece.model` alone, `AutoTokenizer` turns the user-defined symbols into added tokens and gives other ids on many
lines. `tokenizer.json` keeps them as ordinary pieces and repeats `clean` and SentencePiece's normalizer, so that the
ids are equal. Four differences remain:

- A literal "[MASK]" (or another special token) in a text is that token for Hugging Face and ordinary pieces here.
- With byte fallback, a literal "<0x41>" in a text may be that byte for Hugging Face, if its characters have no token.
- Segmentations of equal score may differ under a vocabulary that another program trained (see `unigram`).
- Characters newer than the Unicode tables of either side may differ.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from unicodedata import category, combining

from albert_cli.text.clean import Cleaning
from albert_cli.text.unigram import SPECIAL_TOKENS

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.normalizers import Normalizer

# The condition Final_Sigma of the Unicode standard, section 3.13.
_CASED = r"[\p{Lower}\p{Upper}\p{Lt}]"
_CASE_IGNORABLE = r"[\p{Mn}\p{Me}\p{Cf}\p{Lm}\p{Sk}'.:·’]"
_FULL_WIDTH_TILDE = "～"
_TILDE_PLACEHOLDER = "\ufdd1"  # a code point that is no character
_BYTE_SCORE_FACTOR = 20  # more than the characters of "<0x00>"
_HIDDEN = "\ufdd2"  # another code point that is no character


def build_tokenizer(proto: Any, cleaning: Cleaning) -> Tokenizer:
    """Return a `tokenizers` tokenizer of a parsed model without special tokens: it gives SentencePiece's ids."""
    pieces = [
        # SentencePiece never matches special pieces in a text; a code point that is no character hides them here.
        (piece if p.type in (p.NORMAL, p.USER_DEFINED, p.BYTE) else f"{_HIDDEN}{index}", score)
        for index, (p, (piece, score)) in enumerate(zip(proto.pieces, _score_pieces(proto), strict=True))
    ]
    return _build_tokenizer(pieces, proto, cleaning)


def _score_pieces(proto: Any) -> list[tuple[str, float]]:
    """Return the pieces with the scores that SentencePiece gives them, which the model does not record for all types.

    A symbol has the highest score of a piece times its bytes, less 0.1. A byte is used for
    characters without a piece only, so a text such as "<0x00>" must not match it.
    """
    scores = [p.score for p in proto.pieces if p.type == p.NORMAL]
    highest = max(scores, default=0.0)
    # Symbols of one character can only be one token, unless a longer symbol contains them.
    has_long_symbols = any(p.type == p.USER_DEFINED and len(p.piece) > 1 for p in proto.pieces)
    byte_score = _BYTE_SCORE_FACTOR * min(scores, default=-1.0)
    pieces = []
    for p in proto.pieces:
        score = p.score
        if p.type == p.USER_DEFINED and has_long_symbols:
            score = len(p.piece.encode()) * highest - 0.1
        elif p.type == p.BYTE:
            score = byte_score
        pieces.append((p.piece, score))
    return pieces


def _build_tokenizer(pieces: list[tuple[str, float]], proto: Any, cleaning: Cleaning) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    unk_id = [p.piece for p in proto.pieces].index(SPECIAL_TOKENS["unk"])
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=unk_id, byte_fallback=proto.trainer_spec.byte_fallback))
    tokenizer.normalizer = _build_normalizer(proto.normalizer_spec.precompiled_charsmap, cleaning)
    # "first": a text begins with the word mark, but text after a [MASK] has one only after a space.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    metaspace = decoders.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = metaspace
    if proto.trainer_spec.byte_fallback:
        tokenizer.decoder = decoders.Sequence([metaspace, decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def build_tokenizer_json(proto: Any, cleaning: Cleaning) -> str:
    """Return the content of `tokenizer.json` for a parsed model: the tokenizer with its special tokens."""
    from tokenizers import AddedToken, processors

    tokenizer = _build_tokenizer(_score_pieces(proto), proto, cleaning)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS.values()]
    )
    return str(tokenizer.to_str(pretty=False))


def build_tokenizer_config(cleaning: Cleaning, model_max_length: int) -> dict[str, object]:
    """Return the content of `tokenizer_config.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "model_max_length": model_max_length,
        **{f"{name}_token": token for name, token in SPECIAL_TOKENS.items()},
        "clean_up_tokenization_spaces": False,
        "albert_cleaning": asdict(cleaning),
    }


def _build_normalizer(charsmap: bytes, cleaning: Cleaning) -> Normalizer:
    """Return `clean`, then SentencePiece's normalizer, as a sequence of `tokenizers` steps."""
    from tokenizers import Regex, normalizers

    first_form, last_form = cleaning.unicode_forms
    # Without rules SentencePiece leaves every character as it is.
    sentencepiece_normalizer = normalizers.Precompiled(charsmap) if charsmap else normalizers.Sequence([])
    # The classes are computed in Python: the regex engine's \s and \p{M} differ in some characters.
    steps: list[Normalizer] = [
        normalizers.Replace(Regex(f"[{_build_character_class(str.isspace)}]+"), " "),
        getattr(normalizers, first_form)(),
    ]
    marks = _build_character_class(combining) if cleaning.strip_accents else ""
    latin1 = map(chr, range(0x100))  # has all characters of category Cc that Unicode will ever have
    dropped = [c for c in latin1 if category(c) == "Cc" and not sentencepiece_normalizer.normalize_str(c)]
    # The word mark is inserted only if a text begins at its first character: keep a space at that position. No line
    # feed is left, so ^ matches nowhere else.
    leading = marks + _format_ranges(dropped)
    if leading:
        steps.append(normalizers.Replace(Regex(rf"^[{leading}]+"), " "))
    if marks:
        steps.append(normalizers.Replace(Regex(f"[{marks}]+"), ""))
    if cleaning.lowercase:
        # str.lower treats the Greek final sigma specially; `Lowercase` treats each character alone.
        steps.append(normalizers.Replace(Regex(f"(?<={_CASED})Σ(?!{_CASE_IGNORABLE}*{_CASED})"), "ς"))
        steps.append(normalizers.Lowercase())
    if last_form:
        steps.append(getattr(normalizers, last_form)())
    # `Precompiled` looks up short graphemes where SentencePiece takes the longest match: it leaves Hangul decomposed
    # and loses marks. After NFKC nothing is left to compose.
    compose: list[Normalizer] = [normalizers.NFKC(), sentencepiece_normalizer] if charsmap else []
    if charsmap and not cleaning.normal_form.startswith("NFK"):
        # NFKC would change the full-width tilde, which SentencePiece keeps.
        hide = normalizers.Replace(_FULL_WIDTH_TILDE, _TILDE_PLACEHOLDER)
        restore = normalizers.Replace(_TILDE_PLACEHOLDER, _FULL_WIDTH_TILDE)
        compose = [hide, *compose, restore]
    steps += [*compose, normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip(left=False, right=True)]
    return normalizers.Sequence(steps)


@functools.cache  # a pass over all of Unicode
def _build_character_class(belongs: Callable[[str], object]) -> str:
    """Return the characters for which `belongs` is true as the inside of a regular expression's class."""
    return _format_ranges(filter(belongs, map(chr, range(sys.maxunicode + 1))))


def _format_ranges(characters: Iterable[str]) -> str:
    """Return ascending characters as the inside of a regular expression's class."""
    ranges: list[tuple[int, int]] = []
    for code in map(ord, characters):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    return "".join(_format_range(first, last) for first, last in ranges)


def _format_range(first: int, last: int) -> str:
    if first == last:
        return _format_character(first)
    return f"{_format_character(first)}-{_format_character(last)}"


def _format_character(code: int) -> str:
    """Return a character in the form that Oniguruma (`tokenizers`) and JavaScript (transformers.js) both read."""
    return f"\\u{code:04X}" if code < 0x10000 else chr(code)
