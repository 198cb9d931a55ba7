"""The vocabulary for other programs: `tokenizer.json` and `tokenizer_config.json` of Hugging Face.

Given `spiece.model` alone, `AutoTokenizer` makes added tokens of the user-defined symbols, and differs on many lines.
This file keeps them as ordinary pieces and repeats what `clean` and SentencePiece's normaliser do, for the same ids.
What remains different: a literal "[MASK]" (or another special token) in a text is that token for Hugging Face
and ordinary pieces here; segmentations of equal score under a vocabulary that was trained elsewhere (see `unigram`);
characters newer than the Unicode tables of one side.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any
from unicodedata import category, combining

from albert_cli.text.clean import Cleaning
from albert_cli.text.unigram import SPECIAL_TOKENS

_CASED = r"[\p{Lower}\p{Upper}\p{Lt}]"  # the Final_Sigma condition of the Unicode standard, section 3.13
_CASE_IGNORABLE = r"[\p{Mn}\p{Me}\p{Cf}\p{Lm}\p{Sk}'.:·’]"


def build_tokenizer_json(proto: Any, cleaning: Cleaning) -> str:
    """The content of `tokenizer.json` for a parsed model."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    pieces = [(p.piece, p.score) for p in proto.pieces]
    ids = {piece: index for index, (piece, _) in enumerate(pieces)}
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=ids["<unk>"], byte_fallback=False))
    tokenizer.normalizer = _build_normalizer(proto.normalizer_spec.precompiled_charsmap, cleaning)
    # "first": a text begins with the word mark, but what follows a [MASK] has one only after a space.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS.values()]
    )
    return str(tokenizer.to_str(pretty=False))


def build_tokenizer_config(cleaning: Cleaning, model_max_length: int) -> dict[str, Any]:
    """The content of `tokenizer_config.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "model_max_length": model_max_length,
        **{f"{name}_token": token for name, token in SPECIAL_TOKENS.items()},
        "clean_up_tokenization_spaces": False,
        "albert_cleaning": asdict(cleaning),
    }


def _build_normalizer(charsmap: bytes, cleaning: Cleaning) -> Any:
    """`clean`, then SentencePiece's normaliser, as a sequence of `tokenizers` steps."""
    from tokenizers import Regex, normalizers

    forms = {form: getattr(normalizers, form) for form in ("NFKD", "NFKC", "NFD", "NFC")}
    before, after = cleaning.steps
    precompiled = normalizers.Precompiled(charsmap)
    # The classes are Python's own: the engine's \s and \p{M} differ in some characters.
    steps: list[Any] = [normalizers.Replace(Regex(f"[{_build_character_class(str.isspace)}]+"), " "), forms[before]()]
    marks = _build_character_class(combining) if cleaning.strip_accents else ""
    latin1 = map(chr, range(0x100))  # has all characters of category Cc that Unicode will ever have
    dropped = _format_ranges(c for c in latin1 if category(c) == "Cc" and not precompiled.normalize_str(c))
    # The word mark is put only where a text begins at its first character: keep something in that place.
    steps.append(normalizers.Replace(Regex(rf"\A[{marks}{dropped}]+"), " "))
    if marks:
        steps.append(normalizers.Replace(Regex(f"[{marks}]+"), ""))
    if cleaning.lowercase:
        # str.lower knows the Greek final sigma, a step that lowers each character alone does not.
        steps.append(normalizers.Replace(Regex(f"(?<={_CASED})Σ(?!{_CASE_IGNORABLE}*{_CASED})"), "ς"))
        steps.append(normalizers.Lowercase())
    if after:
        steps.append(forms[after]())
    # `Precompiled` looks up short graphemes where SentencePiece takes the longest match: it leaves Hangul in
    # pieces and loses marks. After NFKC nothing is left to compose. SentencePiece keeps the full-width tilde.
    tilde = [] if cleaning.normal_form.startswith("NFK") else ["～", "\ufdd1"]
    steps += [normalizers.Replace(*tilde)] if tilde else []
    steps += [normalizers.NFKC(), precompiled]
    steps += [normalizers.Replace(*reversed(tilde))] if tilde else []
    steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip(left=False, right=True)]
    return normalizers.Sequence(steps)


@functools.cache  # a pass over all of Unicode
def _build_character_class(belongs: Callable[[str], object]) -> str:
    """The characters for which `belongs` is true, as `_ranges` writes them."""
    return _format_ranges(filter(belongs, map(chr, range(sys.maxunicode + 1))))


def _format_ranges(characters: Iterable[str]) -> str:
    """Ascending characters as the inside of a regular expression's class."""
    ranges: list[list[int]] = []
    for code in map(ord, characters):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"\\x{{{a:X}}}" if a == b else f"\\x{{{a:X}}}-\\x{{{b:X}}}" for a, b in ranges)
