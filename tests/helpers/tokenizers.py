"""Tokenizers of every kind, trained with `tokenizers` and saved with transformers."""

from __future__ import annotations

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
_BYTES: Final = [f"<0x{byte:02X}>" for byte in range(256)]


def lines_of_eight_scripts(count: int) -> list[str]:
    """Return `count` sentences, equally many of each language."""
    return [sentence for language in LANGUAGES for sentence in list(sentences(language))[: count // len(LANGUAGES)]]


def train_wordpiece(directory: Path, size: int = 1500) -> Path:
    """Train BERT's kind of tokenizer."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=list(BERT_ROLES.values()))
    tokenizer.train_from_iterator(lines_of_eight_scripts(8000), trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return _save(directory, tokenizer, BERT_ROLES)


def write_chinese_characters(directory: Path) -> Path:
    """Write a `vocab.txt` of single characters, as the common Chinese ALBERT models have it."""
    import json

    characters = sorted(set("".join(sentences("chinese"))) - {" "})
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "vocab.txt").write_text("\n".join([*BERT_ROLES.values(), *characters]) + "\n", encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}), encoding="utf-8")
    return directory


def train_byte_level(directory: Path) -> Path:
    """Train RoBERTa's kind of tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=list(_ROBERTA_ROLES.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(lines_of_eight_scripts(8000), trainer)
    return _save(directory, tokenizer, _ROBERTA_ROLES)


def train_byte_fallback(directory: Path) -> Path:
    """Train a BPE tokenizer with the word mark and byte fallback, on German alone, so that other scripts need bytes."""
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
