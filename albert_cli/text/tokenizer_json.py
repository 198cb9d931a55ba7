"""Convert a SentencePiece vocabulary to Hugging Face's `tokenizer.json` and `tokenizer_config.json`.

With `spiece.model` alone, Hugging Face's `AutoTokenizer` turns the user-defined symbols into added tokens and gives
other ids on many lines. In our `tokenizer.json` the symbols are ordinary pieces, and the normalizer does what `clean`
and SentencePiece's normalizer do. So the ids are equal, with four exceptions:

- A literal "[MASK]" (or another special token) in a text is that token for Hugging Face and ordinary pieces here.
- With byte fallback, a literal "<0x41>" in a text may be that byte for Hugging Face, if its characters have no token.
- If two segmentations have equal scores, the libraries may choose different ones under a vocabulary that another
  program trained, or in a text with a symbol, whose score of -0.1 is rounded (see `unigram._round_scores`).
- Characters newer than the Unicode tables of either library may differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from unicodedata import category, combining

from albert_cli.errors import CheckpointError
from albert_cli.text.clean import Cleaning
from albert_cli.text.unigram import SPECIAL_TOKENS
from albert_cli.text.vocabulary import MODEL_FILE

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.normalizers import Normalizer

# The first four planes of Unicode. No character of another plane is white space or has a combining class.
_SEARCHED_CODES = range(0x40000)
# Character classes in the condition Final_Sigma of the Unicode standard, section 3.13
_CASED = r"[\p{Lower}\p{Upper}\p{Lt}]"
_CASE_IGNORABLE = r"[\p{Mn}\p{Me}\p{Cf}\p{Lm}\p{Sk}'.:·’]"
_FULL_WIDTH_TILDE = "～"
# Unicode reserves U+FDD0 to U+FDEF for the internal use of programs, so no text contains the following two.
_TILDE_PLACEHOLDER = "\ufdd1"
_HIDDEN_PREFIX = "\ufdd2"
# A byte piece such as "<0x00>" must score worse than its six characters together, so that no text matches it. Scores
# are negative, so 20 times the lowest one is below the sum of any six. See the module's docstring for the exception.
_BYTE_SCORE_FACTOR = 20
_FLT_MIN = 2.0**-126  # C's smallest positive normal number in single precision


def build_tokenizer(proto: Any, cleaning: Cleaning) -> Tokenizer:
    """Return a tokenizer for encoding with offsets, with the ids of a parsed SentencePiece model.

    Special tokens have hidden names, so text never becomes a special token.
    """
    scored_pieces = score_pieces(proto)
    for index, p in enumerate(proto.pieces):
        if p.type not in (p.NORMAL, p.USER_DEFINED, p.BYTE):
            # SentencePiece never matches a special piece in a text, so it gets a name that no text contains.
            _, score = scored_pieces[index]
            scored_pieces[index] = (f"{_HIDDEN_PREFIX}{index}", score)
    return _build_from_pieces(scored_pieces, proto, cleaning)


def score_pieces(proto: Any) -> list[tuple[str, float]]:
    """Return (piece, score) for each id; the scores are those with which SentencePiece encodes.

    The model records the scores of normal pieces only. The score of a user-defined symbol is the number of its bytes
    times the highest score, minus 0.1 (SentencePiece's `unigram_model.cc`). There the search for the highest score
    begins with FLT_MIN, which is just above 0. So the score is about -0.1 if all scores are negative, as in a trained
    model. A byte piece replaces characters without a piece, and never the text "<0x00>" or similar, so its score is too
    low for any segmentation.
    """
    normal_scores = [p.score for p in proto.pieces if p.type == p.NORMAL]
    highest_score = max([_FLT_MIN, *normal_scores])
    byte_score = _BYTE_SCORE_FACTOR * min(normal_scores, default=-1.0)
    # SentencePiece trains no piece that contains a user-defined symbol. So a symbol of one character is a token in
    # every segmentation, and its score does not matter, unless a longer symbol contains it. Without longer symbols, the
    # model's score of 0 is used, because sums with -0.1 are rounded, which could change the segmentation around it.
    has_long_symbols = any(p.type == p.USER_DEFINED and len(p.piece) > 1 for p in proto.pieces)
    scored_pieces = []
    for p in proto.pieces:
        score = p.score
        if p.type == p.USER_DEFINED and has_long_symbols:
            score = len(p.piece.encode()) * highest_score - 0.1
        elif p.type == p.BYTE:
            score = byte_score
        scored_pieces.append((p.piece, score))
    return scored_pieces


def _build_from_pieces(scored_pieces: list[tuple[str, float]], proto: Any, cleaning: Cleaning) -> Tokenizer:
    """Return a tokenizer with these pieces, which normalizes text and falls back to bytes as the model `proto` does.

    scored_pieces: (piece, score) by id.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    unk_id = [p.piece for p in proto.pieces].index(SPECIAL_TOKENS["unk"])
    has_byte_fallback = proto.trainer_spec.byte_fallback
    tokenizer = Tokenizer(models.Unigram(scored_pieces, unk_id=unk_id, byte_fallback=has_byte_fallback))
    tokenizer.normalizer = _build_normalizer(proto.normalizer_spec.precompiled_charsmap, cleaning)
    # "first": a text begins with the word mark, but text after a [MASK] has one only after a space.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    metaspace = decoders.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = metaspace
    if has_byte_fallback:
        tokenizer.decoder = decoders.Sequence([metaspace, decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def build_tokenizer_json(proto: Any, cleaning: Cleaning) -> str:
    """Return the content of `tokenizer.json` for a parsed model: a tokenizer with special tokens."""
    from tokenizers import AddedToken, processors

    tokenizer = _build_from_pieces(score_pieces(proto), proto, cleaning)
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
    """Return the content of `tokenizer_config.json`; model_max_length: tokens to which other programs truncate."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "model_max_length": model_max_length,
        **{f"{name}_token": token for name, token in SPECIAL_TOKENS.items()},
        "clean_up_tokenization_spaces": False,
        "albert_cleaning": asdict(cleaning),
    }


def _build_normalizer(charsmap: bytes, cleaning: Cleaning) -> Normalizer:
    """Return a sequence of `tokenizers` steps that does what `clean` and then SentencePiece's normalizer do.

    charsmap: SentencePiece's compiled normalization rules, b"" if the model has none. Raises `CheckpointError` if they
    are damaged.
    """
    from tokenizers import Regex, normalizers

    try:
        charsmap_normalizer = normalizers.Precompiled(charsmap) if charsmap else normalizers.Sequence([])
    except Exception as error:  # the library raises plain exceptions
        raise CheckpointError(f"{MODEL_FILE}: its normalization rules are damaged ({error})") from None
    first_form, last_form = cleaning.unicode_forms
    # `clean` uses Python's `isspace` and `combining`, from which \s and \p{M} of the regex engine differ in some
    # characters. So the character classes list the characters for which Python's functions return true.
    steps: list[Normalizer] = [
        normalizers.Replace(Regex(f"[{_build_character_class(str.isspace)}]+"), " "),
    ]
    if cleaning.transformers_rules:
        # `Metaspace` inserts no word mark before a first character that was replaced. So the replacement begins with a
        # space, which becomes the word mark.
        steps += [normalizers.Replace(Regex("^(``|'')"), ' "'), normalizers.Replace(Regex("``|''"), '"')]
    steps.append(getattr(normalizers, first_form)())
    marks_class = _build_character_class(combining) if cleaning.strip_accents else ""
    latin1 = map(chr, range(0x100))  # contains all control codes (category Cc), also of future Unicode versions
    dropped_controls = [c for c in latin1 if category(c) == "Cc" and not charsmap_normalizer.normalize_str(c)]
    # If a normalizer step removes the text's first character, `Metaspace` inserts no word mark. So characters at the
    # beginning that would be removed become a space. No line feeds are left, so ^ matches only at the beginning.
    dropped_class = marks_class + _format_ranges(dropped_controls)
    if dropped_class:
        steps.append(normalizers.Replace(Regex(rf"^[{dropped_class}]+"), " "))
    if marks_class:
        steps.append(normalizers.Replace(Regex(f"[{marks_class}]+"), ""))
    if cleaning.lowercase:
        # `str.lower` turns Σ at the end of a word into ς, but `Lowercase` does not look at neighboring characters.
        steps.append(normalizers.Replace(Regex(f"(?<={_CASED})Σ(?!{_CASE_IGNORABLE}*{_CASED})"), "ς"))
        steps.append(normalizers.Lowercase())
    if last_form:
        steps.append(getattr(normalizers, last_form)())
    if charsmap:
        # SentencePiece applies its rules to the longest match, but `Precompiled` only to short graphemes. Without NFKC
        # before it, `Precompiled` would leave Hangul decomposed and lose marks.
        charsmap_steps: list[Normalizer] = [normalizers.NFKC(), charsmap_normalizer]
        if not cleaning.normal_form.startswith("NFK"):
            # NFKC would change the full-width tilde, which SentencePiece keeps.
            hide_tilde = normalizers.Replace(_FULL_WIDTH_TILDE, _TILDE_PLACEHOLDER)
            restore_tilde = normalizers.Replace(_TILDE_PLACEHOLDER, _FULL_WIDTH_TILDE)
            charsmap_steps = [hide_tilde, *charsmap_steps, restore_tilde]
        steps += charsmap_steps
    steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip(left=False, right=True)]
    return normalizers.Sequence(steps)


@functools.cache  # a call takes a pass over four planes of Unicode
def _build_character_class(belongs: Callable[[str], object]) -> str:
    """Return a regular expression's class, without the brackets, of the characters for which `belongs` returns true."""
    return _format_ranges(filter(belongs, map(chr, _SEARCHED_CODES)))


def _format_ranges(characters: Iterable[str]) -> str:
    """Return a regular expression's class, without the brackets, of characters in ascending order."""
    ranges: list[tuple[int, int]] = []  # the first and last code point of each
    for code in map(ord, characters):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    text = ""
    for first, last in ranges:
        text += _format_character(first)
        if last > first:
            text += f"-{_format_character(last)}"
    return text


def _format_character(code: int) -> str:
    """Return a character in a form that both Oniguruma (`tokenizers`) and JavaScript (transformers.js) read."""
    return f"\\u{code:04X}" if code < 0x10000 else chr(code)
