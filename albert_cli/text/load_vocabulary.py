"""Load a directory's vocabulary with the SentencePiece backend if possible, else with that of `tokenizers`.

SentencePiece reads a `spiece.model`, and `tokenizers` reads a `tokenizer.json` or `vocab.txt`. SentencePiece is eight
times as fast. Therefore a `tokenizer.json` with a Unigram model is converted to a SentencePiece model in memory, which
is used only if it gives the same ids on sample texts. A `tokenizer.json` without `spiece.model` is common:
transformers 5 saves our vocabularies this way.

If another program has written both files, only its `tokenizer.json` counts, which transformers reads, too. Its
ALBERT tokenizers differ from ALBERT's released code (`Cleaning.transformers_rules`), and they may have added tokens.
"""

from __future__ import annotations

import itertools
import json
from base64 import b64decode
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import get_args

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.text.clean import Cleaning, NormalForm, TokenizerConfig
from albert_cli.text.comparison_texts import sample_texts
from albert_cli.text.sentencepiece_vocabulary import SentencePieceVocabulary
from albert_cli.text.tokenizers_vocabulary import TokenizerJson, TokenizersVocabulary, read_tokenizer_files
from albert_cli.text.unigram import SPECIAL_TOKENS
from albert_cli.text.vocabulary import (
    CONFIG_FILE,
    MODEL_FILE,
    OTHER_TOKENIZER_FILES,
    REQUEST_FILE,
    TOKENIZER_FILE,
    WORDPIECE_FILE,
    Vocabulary,
)
from albert_cli.text.wordpiece import read_added_tokens


def load_vocabulary(directory: Path) -> Vocabulary:
    """Load the vocabulary of a vocabulary, data or model directory; raise `CheckpointError` if it contains none.

    A data directory has its vocabulary in the folder `vocabulary`.
    """
    if not _has_vocabulary(directory) and _has_vocabulary(directory / "vocabulary"):
        directory = directory / "vocabulary"
    if not _has_vocabulary(directory):
        raise _missing_vocabulary(directory)
    if (directory / REQUEST_FILE).is_file() and store.read_manifest(directory) is None:
        raise CheckpointError(f"{directory}: the vocabulary is unfinished", "run the same `albert vocab` command again")
    if store.exists_or_is_listed(directory / MODEL_FILE):
        config = _read_tokenizer_config(directory)
        has_tokenizer_json = store.exists_or_is_listed(directory / TOKENIZER_FILE)
        if config.albert_cleaning is not None or not has_tokenizer_json:
            model = _parse_model(store.read_bytes(directory / MODEL_FILE), config.cleaning, directory)
            added_tokens = read_added_tokens(directory)
            missing = [token.content for index, token in added_tokens.items() if index >= model.size]
            if not missing:
                return model
            if not has_tokenizer_json:
                message = f"{directory / MODEL_FILE}: lacks the added token {missing[0]!r}"
                raise CheckpointError(message, _saving_hint(directory, [MODEL_FILE]))
    vocabulary = read_tokenizer_files(directory)
    converted = _convert_to_sentencepiece(vocabulary, directory)
    return vocabulary if converted is None else converted


@lru_cache(maxsize=4)
def _parse_model(model_bytes: bytes, cleaning: Cleaning, directory: Path) -> SentencePieceVocabulary:
    """Parse the bytes of a directory's `spiece.model`.

    The result is cached, and callers must not change it: the runs of an experiment load the vocabulary of the same
    directory, and building its `tokenizer.json` takes a second.
    """
    return SentencePieceVocabulary(model_bytes, cleaning, directory)


def _missing_vocabulary(directory: Path) -> CheckpointError:
    """Return the error for a directory without a vocabulary; it lists the files of other tokenizers in it."""
    hint = "use a directory written by `albert vocab`, or a model directory with its tokenizer"
    if not directory.is_dir():
        return CheckpointError(*store.no_directory_message(directory, hint))
    message = f"{directory}: no {MODEL_FILE}, {TOKENIZER_FILE} or {WORDPIECE_FILE} in it"
    if other_files := [name for name in OTHER_TOKENIZER_FILES if (directory / name).is_file()]:
        return CheckpointError(f"{message}, only {' and '.join(other_files)}", _saving_hint(directory, other_files))
    if (directory / CONFIG_FILE).is_file():
        return CheckpointError(f"{message}, only {CONFIG_FILE}", f"copy one of these three files next to {CONFIG_FILE}")
    return CheckpointError(message, hint)


def _saving_hint(directory: Path, files: Sequence[str]) -> str:
    """Return the remedy for a directory with the files of another tokenizer: the code that writes a tokenizer.json."""
    save = f"AutoTokenizer.from_pretrained('{directory}').save_pretrained('{directory}')"
    if any((directory / name).is_file() for name in ("config.json", CONFIG_FILE)):
        return f"save it again in transformers: {save}"
    if not {"vocab.json", "merges.txt"} <= set(files):
        return f"copy the model's config.json into it, and save it again in transformers: {save}"
    # Without a configuration, only the pieces show which class of `tokenizers` has saved them.
    has_suffix = b"</w>" in store.read_bytes(directory / "merges.txt")
    name = "CharBPETokenizer" if has_suffix else "ByteLevelBPETokenizer"
    load = f"{name}.from_file('{directory}/vocab.json', '{directory}/merges.txt')"
    return f"save it again with tokenizers: {load}.save('{directory}/{TOKENIZER_FILE}')"


def _has_vocabulary(directory: Path) -> bool:
    return any((directory / name).is_file() for name in (MODEL_FILE, TOKENIZER_FILE, WORDPIECE_FILE))


def _read_tokenizer_config(directory: Path) -> TokenizerConfig:
    """Return the directory's `tokenizer_config.json`, or the defaults if it has none."""
    path = directory / CONFIG_FILE
    return store.read_record(path, TokenizerConfig) if store.exists_or_is_listed(path) else TokenizerConfig()


# ---------------------------------------------------------------- Unigram to SentencePiece


def _convert_to_sentencepiece(vocabulary: TokenizersVocabulary, directory: Path) -> SentencePieceVocabulary | None:
    """Return a SentencePiece vocabulary that gives the same ids as the directory's `tokenizer.json`.

    vocabulary: the directory's tokenizer. Returns None if the directory has no `tokenizer.json`, if its model is not a
    Unigram model with ALBERT's special tokens, or if no `Cleaning` does what its normalizer does.
    """
    path = directory / TOKENIZER_FILE
    if not store.exists_or_is_listed(path):
        return None
    content = json.loads(store.read_bytes(path))
    model = content["model"]
    if model.get("type") != "Unigram" or model.get("byte_fallback"):
        return None
    has_special_tokens = all(vocabulary.pieces.count(token) == 1 for token in SPECIAL_TOKENS.values())
    # SentencePiece splits markers into pieces.
    has_added_tokens = vocabulary.size != len(model["vocab"]) or bool(vocabulary.marker_ids)
    if not has_special_tokens or has_added_tokens:
        return None
    texts = sample_texts(vocabulary.text_pieces)
    expected_ids = vocabulary.encode_batch(texts)
    model_bytes = _build_model(model, _find_charsmap(content.get("normalizer")), vocabulary)
    for cleaning in _candidate_cleanings(directory):
        converted = SentencePieceVocabulary(model_bytes, cleaning, directory)
        if converted.encode_batch(texts) == expected_ids:
            return converted
    return None


def _candidate_cleanings(directory: Path) -> Iterator[Cleaning]:
    """Yield the saved cleaning first, then all other cleanings.

    A program that saves the tokenizer again may drop our key `albert_cleaning` from `tokenizer_config.json`. The
    tokenizer's normalizer then still does the cleaning, but only comparing ids shows which one it is.
    """
    saved = _read_tokenizer_config(directory).cleaning
    yield saved
    options = ((True, False), (True, False), get_args(NormalForm), (True, False))
    for lowercase, strip_accents, form, transformers_rules in itertools.product(*options):
        candidate = Cleaning(lowercase, strip_accents, form, transformers_rules)
        if candidate != saved:
            yield candidate


def _build_model(model: TokenizerJson, charsmap: bytes, vocabulary: TokenizersVocabulary) -> bytes:
    """Return the bytes of a SentencePiece model (`spiece.model`) with the pieces and scores of a `tokenizer.json`.

    model: the Unigram model of the `tokenizer.json`; charsmap: SentencePiece's compiled normalization rules;
    vocabulary: loaded from the same `tokenizer.json`, with the ids of the special tokens.
    """
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.trainer_spec.model_type = proto.trainer_spec.UNIGRAM
    proto.trainer_spec.unk_id = vocabulary.unk_id
    proto.trainer_spec.pad_id = vocabulary.pad_id
    proto.trainer_spec.bos_id = -1
    proto.trainer_spec.eos_id = -1
    proto.trainer_spec.pad_piece = vocabulary.pieces[vocabulary.pad_id]
    proto.trainer_spec.unk_piece = vocabulary.pieces[vocabulary.unk_id]
    proto.trainer_spec.vocab_size = vocabulary.size
    proto.normalizer_spec.name = "nmt_nfkc"
    proto.normalizer_spec.precompiled_charsmap = charsmap
    for index, (piece, score) in enumerate(model["vocab"]):
        p = proto.pieces.add(piece=piece, score=score)
        if index == vocabulary.unk_id:
            p.type = p.UNKNOWN
        elif vocabulary.text_pieces[index] == "":  # a token that is not text, such as [CLS]
            p.type = p.CONTROL
        else:
            p.type = p.NORMAL
    content: bytes = proto.SerializeToString()
    return content


def _find_charsmap(normalizer: TokenizerJson | None) -> bytes:
    """Return SentencePiece's compiled normalization rules from a normalizer or its steps; b"" if there are none."""
    if normalizer is None:
        return b""
    if normalizer.get("type") == "Precompiled":
        return b64decode(normalizer.get("precompiled_charsmap") or "")
    for step in normalizer.get("normalizers", []):
        if charsmap := _find_charsmap(step):
            return charsmap
    return b""
