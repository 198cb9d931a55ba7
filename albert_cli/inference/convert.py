"""`albert convert`: turn a PyTorch or TensorFlow checkpoint into a directory that `albert` and Hugging Face read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from unicodedata import combining, normalize

import torch
from torch import Tensor

from albert_cli import console, store
from albert_cli.errors import BusyError, CheckpointError
from albert_cli.formatting import count_of
from albert_cli.inference.sentence_modules import copy_sentence_settings, read_sentence_settings
from albert_cli.model import hub, tensorflow_checkpoint, weight_files
from albert_cli.model.heads import BareEncoder
from albert_cli.model.hf_config import config_to_json, model_type
from albert_cli.text.clean import TokenizerConfig
from albert_cli.text.sentencepiece_vocabulary import SentencePieceVocabulary
from albert_cli.text.tokenizers_vocabulary import read_wordpiece
from albert_cli.text.vocabulary import CONFIG_FILE, TOKENIZER_FILE, WORDPIECE_FILE, Vocabulary
from albert_cli.text.words import WORD_MARK

_CHINESE_FILE = "vocab_chinese.txt"  # the `vocab.txt` of Google's Chinese ALBERT models
_VOCABULARY_TENSORS = ("encoder.embeddings.word.weight", "masked.bias")  # tensors with a row for each token


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion, as `--json` prints it; `vocabulary` is the number of tokens."""

    out: str
    fingerprint: str
    model_type: str
    architecture: str
    tensors: int
    parameters: int
    vocabulary: int


def convert(checkpoint: str, out: Path) -> Conversion:
    """Write the checkpoint's weights, configuration and tokenizer to the new directory `out`.

    Reads safetensors and `pytorch_model.bin`, each also in shards, and Google's TensorFlow checkpoints. Copies the
    modules of a sentence-transformers model. Raises `CheckpointError` if a file is missing or damaged, or if a weight
    of the encoder is missing, `BusyError` if `out` exists, `ConfigError` if TensorFlow is not installed.
    """
    if out.exists():
        raise BusyError(f"{out}: exists already", "choose another --out")
    source, vocabulary = _read(checkpoint)
    _require_encoder(source)
    if vocabulary.size > source.config.vocab_size:
        raise CheckpointError(
            f"{checkpoint}: the vocabulary has {vocabulary.size} tokens, the model {source.config.vocab_size}",
            "use a tokenizer and weights that belong together",
        )
    source = _remove_unused_rows(source, vocabulary.size)
    architecture = _choose_architecture(source)
    positions = source.config.max_position_embeddings
    max_length = min(positions, read_sentence_settings(source.directory).max_length or positions)
    with store.commit_directory(out, "checkpoint") as staging:
        hub.write_tensors(source.tensors, source.config, staging, architecture)
        store.write_json(staging / "config.json", _describe_model(source, architecture))
        hub.write_vocabulary(vocabulary, staging, max_length)
        copy_sentence_settings(source.directory, staging)
    written = hub.read_checkpoint(out)
    return Conversion(
        out=str(out),
        fingerprint=store.fingerprint(out),
        model_type=str(written.values["model_type"]),
        architecture=architecture,
        tensors=len(written.tensors),
        parameters=sum(tensor.numel() for tensor in written.tensors.values()),
        vocabulary=vocabulary.size,
    )


def _choose_architecture(source: hub.Checkpoint) -> str:
    """Return the class that config.json names, or else the class that the tensors imply."""
    # `read_checkpoint` leaves out a masked-language head that is not tied to the word table.
    lost_head = source.architecture in ("ForMaskedLM", "ForPreTraining") and "masked.bias" not in source.tensors
    if source.architecture is None or lost_head:
        return infer_architecture(source.tensors)
    return source.architecture


def _describe_model(source: hub.Checkpoint, architecture: str) -> dict[str, object]:
    """Return the content of the new `config.json`: the shape, and the entries that inference reads."""
    # The one output of a multiple-choice head is the score of an option and has no name.
    labels = () if architecture == "ForMultipleChoice" else source.output_names
    values = config_to_json(source.config, architecture, labels, multi_label=source.is_multi_label)
    problem_type = source.values.get("problem_type")
    if labels and isinstance(problem_type, str):  # else a regression of several values would become a classifier
        values["problem_type"] = problem_type
    if source.finetuned_task is not None:
        values |= source.finetuned_task.to_json()
    if "order.bias" in source.tensors:
        values[hub.ORDER_CLASSES_KEY] = list(source.order_classes)
    return values


def _remove_unused_rows(source: hub.Checkpoint, size: int) -> hub.Checkpoint:
    """Return the checkpoint with only the first `size` rows of its word table; size: the number of tokens.

    Some programs pad the table to a multiple of 8 or 64 rows. No text selects the additional rows.
    """
    if source.config.vocab_size == size:
        return source
    unused = source.config.vocab_size - size
    console.info(f"{source.directory}: left out {unused} rows of the word table that have no token")
    rows = {name: source.tensors[name][:size] for name in _VOCABULARY_TENSORS if name in source.tensors}
    config = dataclasses.replace(source.config, vocab_size=size)
    return dataclasses.replace(source, config=config, tensors=source.tensors | rows)


def _read(checkpoint: str) -> tuple[hub.Checkpoint, Vocabulary]:
    """Read a checkpoint of any layout with its vocabulary; checkpoint: a directory, a run or a Hub id."""
    directory = Path(checkpoint)
    has_config = (directory / "config.json").is_file()  # True for every checkpoint in Hugging Face's layout
    if directory.is_dir() and not has_config and weight_files.is_tensorflow(directory):
        return _read_tensorflow(directory)
    source = hub.read_checkpoint(hub.find_checkpoint(checkpoint))
    return source, Vocabulary.load(source.directory)


def _read_tensorflow(directory: Path) -> tuple[hub.Checkpoint, Vocabulary]:
    """Read a TensorFlow checkpoint of Google's releases, with its vocabulary."""
    config, config_json = tensorflow_checkpoint.read_config(directory)
    vocabulary = _load_tensorflow_vocabulary(directory)
    tensors = tensorflow_checkpoint.read_tensors(directory, config)
    # `read_tensors` renames the model's weights. All other variables still have TensorFlow's names, with slashes.
    unknown = sorted(name for name in tensors if "/" in name)
    if unknown:
        count = len(unknown)
        console.warn(f"{directory}: left out {count_of(count, 'variable')}, not weights of the model: {unknown[0]}, …")
    weights = {name: tensor for name, tensor in tensors.items() if "/" not in name}
    source = hub.use_pair_template(hub.Checkpoint(directory, config, config_json, model_type(config), weights))
    return source, vocabulary


def _load_tensorflow_vocabulary(directory: Path) -> Vocabulary:
    """Load the `*.model` of an ALBERT, or else the tokenizer of a BERT or of a Chinese ALBERT.

    In the archives, only the name says whether a model is cased. The pieces of uncased models are lower-cased.
    """
    if models := sorted(directory.glob("*.model")):
        return _load_sentencepiece(models[0])
    paths = [directory / name for name in (WORDPIECE_FILE, _CHINESE_FILE) if (directory / name).exists()]
    if (directory / TOKENIZER_FILE).exists() or not paths:
        return Vocabulary.load(directory)
    return _load_wordpiece(paths[0])


def _load_sentencepiece(path: Path) -> SentencePieceVocabulary:
    """Load the `*.model` of an ALBERT.

    If `tokenizer_config.json` does not set the case or the accents, the tokenizer keeps those that the pieces have.
    """
    config_path = path.parent / CONFIG_FILE
    has_config = config_path.is_file()
    settings = store.read_json(config_path) if has_config else {}
    config = store.read_record(config_path, TokenizerConfig) if has_config else TokenizerConfig()
    model = store.read_bytes(path)
    vocabulary = SentencePieceVocabulary(model, config.cleaning, path.parent)
    if config.albert_cleaning is not None:
        return vocabulary
    if "do_lower_case" not in settings and _has_capitals(vocabulary):
        config = dataclasses.replace(config, do_lower_case=False)
        _print_note(path, "pieces with capital letters, so the tokenizer does not lower-case texts", "do_lower_case")
    if "keep_accents" not in settings and _has_accents(vocabulary):
        config = dataclasses.replace(config, keep_accents=True)
        _print_note(path, "pieces with accents, so the tokenizer keeps the accents of texts", "keep_accents")
    if config.cleaning == vocabulary.cleaning:
        return vocabulary
    return SentencePieceVocabulary(model, config.cleaning, path.parent)


def _load_wordpiece(path: Path) -> Vocabulary:
    """Load a `vocab.txt`; if `tokenizer_config.json` does not set the case, the tokenizer keeps that of the pieces."""
    vocabulary = read_wordpiece(path)
    if not _has_capitals(vocabulary):
        return vocabulary
    cased = read_wordpiece(path, {"do_lower_case": False})
    if cased.fingerprint != vocabulary.fingerprint:  # else `tokenizer_config.json` sets the case
        _print_note(path, "pieces with capital letters, so the tokenizer does not lower-case texts", "do_lower_case")
    return cased


def _has_capitals(vocabulary: Vocabulary) -> bool:
    """Return True if more than one piece in a thousand has capital letters; markup such as <S> does not count."""
    words = (piece.removeprefix(WORD_MARK) for piece in vocabulary.text_pieces)
    return _is_frequent(word.isalpha() and word != word.lower() for word in words)


def _has_accents(vocabulary: Vocabulary) -> bool:
    """Return True if more than one piece in a thousand has combining characters, which `strip_accents` would drop."""
    return _is_frequent(any(map(combining, normalize("NFD", piece))) for piece in vocabulary.text_pieces)


def _is_frequent(matches: Iterable[bool]) -> bool:
    """Return True if more than one in a thousand is True; fewer pieces may be strays of a cleaned text."""
    flags = list(matches)
    return sum(flags) * 1000 > len(flags)


def _print_note(path: Path, content: str, key: str) -> None:
    """Print the content of a vocabulary that has decided a setting, and the key of `tokenizer_config.json` for it."""
    console.info(f"{path}: has {content}; to change this, set {key} in {path.parent / CONFIG_FILE}")


def _require_encoder(source: hub.Checkpoint) -> None:
    """Raise `CheckpointError` if a weight of the encoder is missing, which other programs would initialize randomly."""
    with torch.device("meta"):  # only the names count
        encoder = BareEncoder(source.config, pooler=False)
    missing = [name for name in encoder.state_dict() if name not in source.tensors]
    if missing:
        raise CheckpointError(f"{source.directory}: has no {missing[0]}", weight_files.MISMATCH_HINT)


def infer_architecture(tensors: Mapping[str, Tensor]) -> str:
    """Return Hugging Face's class for a model with these tensors, without the class's prefix `Albert` or `Bert`."""
    if "masked.bias" in tensors:
        return "ForPreTraining" if "order.weight" in tensors else "ForMaskedLM"
    return "ForSequenceClassification" if "classifier.weight" in tensors else "Model"


def format_conversion(result: Conversion) -> str:
    """Return a line that describes the new directory."""
    return (
        f"{result.out}: {result.architecture} of type {result.model_type}, {result.parameters:,} parameters in "
        f"{result.tensors} tensors, {result.vocabulary:,} tokens"
    )
