"""Tokenizers of every kind, trained with `tokenizers` and saved with transformers."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.helpers.languages import sentences

LANGUAGES: Final = ("german", "russian", "hindi", "korean", "turkish", "greek", "chinese", "japanese")
BERT_ROLES: Final = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
_ROBERTA_ROLES: Final = {
    "cls_token": "<s>",
    "pad_token": "<pad>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}
# Assigned code points of each script since Unicode 1.1 or 2.0, so that every library knows them.
_RANGES: Final = {
    "Latin": ((0x41, 0x5A), (0x61, 0x7A), (0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x17F)),
    "Cyrillic": ((0x401, 0x40C), (0x410, 0x44F), (0x451, 0x45C)),
    "Greek": ((0x391, 0x3A1), (0x3A3, 0x3A9), (0x3AC, 0x3CE)),
    "Arabic": ((0x621, 0x63A), (0x641, 0x652)),
    "Devanagari": ((0x905, 0x939), (0x93E, 0x94D), (0x966, 0x96F)),
    "Hangul": ((0xAC00, 0xD7A3),),
    "Han": ((0x4E00, 0x9FA5),),
    "Kana": ((0x3041, 0x3094), (0x30A1, 0x30FA)),
}
_BLOCKS: Final = {
    script: [chr(code) for first, last in ranges for code in range(first, last + 1)]
    for script, ranges in _RANGES.items()
}
_ODD_WORDS: Final = (
    "2,011", "1.5%", "don't", '"x"', "``y''", "(z)", "a-b", "e\u0301", "ﬁ", "½", "ＡＢＣ", "👍🏽", "👩\u200d👧",
    "\u00a0", "snake_case", "#1", "№12", "İ", "ΣΑΣ", "ß", "～",
)  # fmt: skip
_BYTES: Final = [f"<0x{byte:02X}>" for byte in range(256)]


def lines_of_eight_languages(count: int) -> list[str]:
    """Return `count` sentences, equally many of each language."""
    return [sentence for language in LANGUAGES for sentence in list(sentences(language))[: count // len(LANGUAGES)]]


def mixed_lines(count: int) -> list[str]:
    """Return `count` different lines of eight scripts: sentences, and as many lines of random words, digits and signs.

    The random words have letters and marks in an order that no sentence has.
    """
    rng = random.Random(0)
    lines = dict.fromkeys(rng.sample(lines_of_eight_languages(8000), min(count // 2, 8000)))
    while len(lines) < count:
        block = rng.choice(list(_BLOCKS.values()))
        words = ["".join(rng.choices(block, k=rng.randint(1, 8))) for _ in range(rng.randint(2, 12))]
        words.insert(rng.randrange(len(words)), rng.choice(_ODD_WORDS))
        lines[" ".join(words) + rng.choice((".", "!", "?", "。", "…", ""))] = None
    return list(lines)


def train_wordpiece(directory: Path, size: int = 1500) -> Path:
    """Train BERT's kind of tokenizer."""
    from tokenizers import Tokenizer

    return _save(directory, Tokenizer.from_str(_wordpiece(size)), BERT_ROLES)


@functools.cache
def _wordpiece(size: int) -> str:
    """Train BERT's kind of tokenizer; return the content of its tokenizer.json."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=list(BERT_ROLES.values()))
    tokenizer.train_from_iterator(lines_of_eight_languages(8000), trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return str(tokenizer.to_str())


def write_chinese_characters(directory: Path) -> Path:
    """Write a `vocab.txt` of single characters, as in the common Chinese ALBERT models."""
    import json

    characters = sorted(set("".join(sentences("chinese"))) - {" "})
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "vocab.txt").write_text("\n".join([*BERT_ROLES.values(), *characters]) + "\n", encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True}), encoding="utf-8"
    )
    return directory


def train_byte_level(directory: Path) -> Path:
    """Train RoBERTa's kind of tokenizer."""
    from tokenizers import Tokenizer

    return _save(directory, Tokenizer.from_str(_byte_level()), _ROBERTA_ROLES)


@functools.cache
def _byte_level() -> str:
    """Train RoBERTa's kind of tokenizer; return the content of its tokenizer.json."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=list(_ROBERTA_ROLES.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(lines_of_eight_languages(8000), trainer)
    return str(tokenizer.to_str())


def train_byte_fallback(directory: Path) -> Path:
    """Train a BPE tokenizer with the mark "▁" and byte fallback, only on German, so that other scripts need bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=[*BERT_ROLES.values(), *_BYTES])
    tokenizer.train_from_iterator(sentences("german"), trainer)
    return _save(directory, tokenizer, BERT_ROLES)


KINDS: Final[Mapping[str, Callable[[Path], Path]]] = {
    "WordPiece": train_wordpiece,
    "Chinese characters": write_chinese_characters,
    "byte-level BPE": train_byte_level,
    "byte fallback": train_byte_fallback,
}


def _save(directory: Path, tokenizer: Any, roles: Mapping[str, str]) -> Path:
    import transformers

    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)
    fast.save_pretrained(directory)
    return directory
