"""Find, read and write checkpoints: a checkpoint directory is a Hugging Face model directory.

Hugging Face reads it as an ALBERT or, for a shape with E = H that shares nothing, as a BERT. For a shape that neither
can express, the files have our names of tensors and our own `model_type`, so that no other library loads them wrongly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from albert_cli import console, hub_access, store
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.model import hf_names
from albert_cli.model.config import CUSTOM_MODEL_TYPE, ModelConfig
from albert_cli.model.hf_config import CLASS_PREFIXES, MULTI_LABEL, config_to_json, model_type
from albert_cli.model.weight_files import (
    WEIGHTS_FILE,
    check_size,
    check_values,
    describe_file,
    describe_layout,
    describe_repository,
    find_weight_files,
    has_weights,
    read_weights,
)
from albert_cli.text.pair_template import read_pair_template
from albert_cli.text.vocabulary import OTHER_TOKENIZER_FILES, Vocabulary

INIT_DIRECTORY: Final = "init"  # in a run's directory: the weights at step 0 if the recipe sets something in [init]
# The class of a bare encoder. Names in its files lack the prefix `albert.` or `bert.`, which all other files have.
_BARE_ARCHITECTURE: Final = "Model"
# The key of the sentence head's classes in config.json. An empty list means that the head is not trained.
ORDER_CLASSES_KEY: Final = "sentence_order_labels"
# The sentence head's classes in order, by `data.sentence_loss`. In the released ALBERT models, too, 1 means swapped.
ORDER_CLASSES: Final[Mapping[str, tuple[str, ...]]] = {
    "sop": ("in order", "swapped"),
    "nsp": ("next", "other document"),
    "three-way": ("in order", "swapped", "other document"),
    "none": (),
}
# The classes of models that another program may have fine-tuned on pairs of texts.
_TASK_ARCHITECTURES: Final = ("ForSequenceClassification", "ForMultipleChoice", "ForQuestionAnswering")
# The classes of models whose layer `classifier` has an output per label. That of multiple choice scores an option.
_LABEL_ARCHITECTURES: Final = ("ForSequenceClassification", "ForTokenClassification")
_WORD_TABLE: Final = "encoder.embeddings.word.weight"
_SEGMENT_TABLE: Final = "encoder.embeddings.segment.weight"
# The configuration, the tokenizer and the settings of sentence-transformers (`inference.sentence_modules`).
# `Vocabulary.load` lists the files that it cannot read in its error.
_HUB_FILES: Final = (
    *("config.json", "spiece.model", "tokenizer*.json", "special_tokens_map.json", "vocab.txt", "added_tokens.json"),
    *(*OTHER_TOKENIZER_FILES, "modules.json", "*_Pooling/config.json", "sentence_bert_config.json"),
    "config_sentence_transformers.json",
)
_MIN_SEQ_LENGTH: Final = 5  # the minimum of `max_seq_length` in recipes


@dataclass(frozen=True)
class FinetunedTask:
    """The task of a task checkpoint, as its config.json records it.

    `task` is the name of the task, `inputs` the number of texts in an input (0: one or two), and `max_seq_length` the
    limit in tokens. `settings` depend on the kind of task; inference needs them to encode inputs and decode outputs as
    in training. `head` describes the head of the model that `albert` wrote; earlier versions did not record it.
    """

    task: str
    inputs: int
    max_seq_length: int
    settings: Mapping[str, object] = field(default_factory=dict)
    head: str | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, object]:
        """Return the entries of `config.json`: the name has Hugging Face's key, the rest is under `albert_task`."""
        details: dict[str, object] = {"inputs": self.inputs, "max_seq_length": self.max_seq_length}
        if self.settings:
            details["settings"] = dict(self.settings)
        if self.head is not None:
            details["head"] = self.head
        return {"finetuning_task": self.task, "albert_task": details}


# ---------------------------------------------------------------- reading


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint directory.

    `values` is the content of config.json. `tensors` have our names. In the weights file they have the names of
    Hugging Face's `model_type`, or our names if `model_type` is our own type.
    """

    directory: Path
    config: ModelConfig
    values: Mapping[str, object]
    model_type: str
    tensors: dict[str, Tensor]

    @property
    def architecture(self) -> str | None:
        """The class that config.json names, without the model type: `ForPreTraining`; None if it names no class."""
        architectures = self.values.get("architectures")
        if not isinstance(architectures, list) or not architectures:
            return None
        return str(architectures[0]).removeprefix(CLASS_PREFIXES[self.model_type])

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a sequence classifier in order; empty for multi-label classification and for other heads."""
        # The heads for multiple choice and for token classification also have a layer called `classifier`.
        if self.is_multi_label or self.architecture not in (None, "ForSequenceClassification"):
            return ()
        return self.output_names

    @property
    def order_classes(self) -> tuple[str, ...]:
        """The sentence head's classes in order; empty if the checkpoint has no trained sentence head."""
        head_bias = self.tensors.get("order.bias")
        if head_bias is None or "encoder.pooler.weight" not in self.tensors:
            return ()
        names = self.values.get(ORDER_CLASSES_KEY)
        if isinstance(names, list) and len(names) in (0, len(head_bias)):
            return tuple(map(str, names))
        if store.exists_or_is_listed(self.directory / "recipe.toml"):
            return ()  # earlier versions of `albert` wrote no classes for an untrained head
        return ORDER_CLASSES["nsp" if self.model_type == "bert" else "sop"]

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs of a layer called `classifier`, whatever its task; empty without such a layer."""
        outputs = len(self.tensors.get("classifier.weight", ()))
        names = self.values.get("id2label")
        if not isinstance(names, dict):  # Hugging Face does not write the default names of two outputs
            names = {}
        return tuple(str(names.get(str(number), f"LABEL_{number}")) for number in range(outputs))

    @property
    def is_multi_label(self) -> bool:
        """True if a text may have several of the classifier's labels, each with its own probability."""
        return "classifier.weight" in self.tensors and self.values.get("problem_type") == MULTI_LABEL

    @property
    def has_unnamed_labels(self) -> bool:
        """True if another program wrote the classifier of texts or tokens, and its labels have the default names."""
        if self.finetuned_task is not None or self.architecture not in (None, *_LABEL_ARCHITECTURES):
            return False
        labels = self.output_names
        return bool(labels) and labels == tuple(f"LABEL_{number}" for number in range(len(labels)))

    @property
    def finetuned_task(self) -> FinetunedTask | None:
        """The task on which `albert` fine-tuned the checkpoint.

        None for a pretrained model, for other programs' classifiers, and for entries that `albert` does not write. Also
        None if the entries describe another head: transformers copies them into the config.json of a new head.
        """
        match self.values:
            case {
                "finetuning_task": str(task),
                "albert_task": {"inputs": (0 | 1 | 2) as inputs, "max_seq_length": int(max_seq_length), **details},
            } if max_seq_length >= _MIN_SEQ_LENGTH:
                settings = details.get("settings")
                if not isinstance(settings, dict):
                    settings = {}
                head = _describe_head(self.architecture, self.tensors)
                if details.get("head", head) == head:
                    return FinetunedTask(task, inputs, max_seq_length, settings, head)
        return None

    @property
    def max_length(self) -> int:
        """The number of tokens to which inputs are truncated: as in fine-tuning, and at most the model's positions."""
        positions = self.config.max_position_embeddings
        finetuned = self.finetuned_task
        if finetuned is None:
            return positions
        return min(positions, finetuned.max_seq_length)


def _describe_head(architecture: str | None, tensors: Mapping[str, Tensor]) -> str:
    """Return the class of a head and the number of its classifier's outputs: `ForSequenceClassification, 3`."""
    return f"{architecture}, {len(tensors.get('classifier.weight', ()))}"


def find_checkpoint(name: str) -> Path:
    """Return the directory of the checkpoint to which a name refers: a model directory, a run, or a Hub id.

    For a run, this is the directory of its newest step. Downloads the files of a Hub id. Raises `CheckpointError` if
    there is none.
    """
    path = Path(name)
    steps = store.saved_steps(path)
    # If `albert finetune` is killed while it publishes a model, the run has a config.json and no manifest.
    is_unpublished = bool(steps) and store.read_manifest(path) is None
    if (path / "config.json").is_file() and not is_unpublished:
        return path
    if path.is_dir():
        if steps:
            return steps[-1]
        content, hint = describe_layout(path)
        raise CheckpointError(f"{path}: contains {content}", hint)
    if path.is_file():
        raise CheckpointError(*describe_file(path))
    hint = "check the path; a run or a Hub id such as albert/albert-base-v2 works too"
    if re.fullmatch(r"step-\d+", path.name):  # never the name of a model on the Hub
        if path.parent.is_dir():
            hint = f"a run deletes its old steps: name {path.parent} for the newest one, or a step that still exists"
    elif re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not name.startswith("."):
        return _download(name)
    raise CheckpointError(f"{path}: no such directory", hint)


def _download(name: str) -> Path:
    """Download a model's files from the Hub and return their directory; prefer safetensors to pickled weights.

    Raises `CheckpointError` if the repository has no weights that can be read.
    """
    console.info(f"{name}: no such directory, so it is read from the Hugging Face Hub")  # which may take minutes
    safetensors = ("*.safetensors", f"{WEIGHTS_FILE}.index.json")
    pickled = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
    for weights in (safetensors, pickled):
        directory = hub_access.download_hub_files(name, [*_HUB_FILES, *weights])
        if has_weights(directory) and (directory / "config.json").is_file():
            return directory
    if hub_access.prefer_offline():  # the Hub does not list the repository's files
        return directory
    content, hint = describe_repository(hub_access.list_hub_files(name))
    raise CheckpointError(f"{name}: contains {content}", hint)


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read and verify a checkpoint directory; raise `CheckpointError` if something is missing or damaged.

    Compares the files with the hashes in the manifest. Prints a note if there is no manifest: only albert writes one.
    """
    if store.read_manifest(directory) is not None:
        store.verify(directory)
    else:
        console.info(f"{directory}: not written by albert, so there are no hashes to verify")
    values = store.read_json(directory / "config.json")
    config = ModelConfig.from_hf(values, str(directory / "config.json"))
    if values.get("quantization_config"):
        message = f"{directory}: the weights are quantized (quantization_config in config.json)"
        raise CheckpointError(message, "use the checkpoint in fp32, fp16 or bf16")
    files = find_weight_files(directory)
    check_size(files, config)
    hf_type = model_type(config)  # from the shape, because old files lack the key `model_type`
    if values.get("model_type") == CUSTOM_MODEL_TYPE:  # our own type may be due to the head instead of the shape
        hf_type = CUSTOM_MODEL_TYPE
    stored = read_weights(files)
    check_values(directory, stored)
    tensors = hf_names.from_hf_names(stored, config, hf_type)
    decoders = [tensor for name, tensor in stored.items() if name.endswith("predictions.decoder.weight")]
    if decoders and values.get("tie_word_embeddings") is not False:
        # The file may have the tied matrix under the decoder's name only.
        tensors.setdefault(_WORD_TABLE, decoders[0])
    if decoders and not torch.equal(tensors.get(_WORD_TABLE, torch.empty(0)), decoders[0]):
        # Our masked-language head uses the word table as its decoder. With the word table, the other weights of this
        # file's head would predict wrong words. Like transformers, believe the tensors, and not the config.
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("masked.")}
        console.info(f"{directory}: its masked-language head is left out, because its decoder is not the word table")
    return use_pair_template(Checkpoint(directory, config, values, hf_type, tensors))


def use_pair_template(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with equal segments if it has only one, or if its model was fine-tuned without segment ids.

    With equal segments, the model computes for pairs in our form what it computes for pairs without segment ids. Prints
    a warning if another program fine-tuned the model on pairs with another number of separators.
    """
    segments = checkpoint.tensors.get(_SEGMENT_TABLE)
    if segments is None:
        return checkpoint
    has_equal_segments = len(segments) == 1
    if checkpoint.architecture in _TASK_ARCHITECTURES and checkpoint.finetuned_task is None:
        template = read_pair_template(checkpoint.directory)
        has_equal_segments = has_equal_segments or not template.has_second_segment
        if template.separators != 1:
            console.warn(
                f"{checkpoint.directory}: its tokenizer writes {template.separators} special tokens between two texts, "
                "but albert writes 1, so predictions for pairs of texts differ from those of transformers; "
                "to predict pairs, fine-tune the model again with albert"
            )
    if not has_equal_segments:
        return checkpoint
    equal_segments = segments[:1].repeat(checkpoint.config.type_vocab_size, 1)
    return replace(checkpoint, tensors={**checkpoint.tensors, _SEGMENT_TABLE: equal_segments})


def verify_fingerprint(directory: Path, role: str, key: str, fingerprint: str | None) -> str:
    """Return the fingerprint of the checkpoint in `directory`, which a recipe uses as its `role` (parent or teacher).

    Raises `ConfigError` if `fingerprint`, the value of the recipe's `key`, is not None and differs.
    """
    actual = store.fingerprint(directory)
    if fingerprint not in (None, actual):
        raise ConfigError(
            f"{directory}: is another {role} ({actual}) than {key} names ({fingerprint})",
            f"restore the {role} that {key} names, or choose another --out and leave out {key}",
        )
    return actual


def load_vocabulary(checkpoint: Checkpoint) -> Vocabulary:
    """Load the vocabulary of a checkpoint; raise `ConfigError` unless it is as large as the model's word table."""
    vocabulary = Vocabulary.load(checkpoint.directory)
    rows = checkpoint.config.vocab_size
    if vocabulary.size != rows:
        hint = "use a tokenizer and weights that belong together"
        if vocabulary.size < rows:
            hint += f"; if they do, `albert convert {checkpoint.directory} --out NEW` removes the rows without a token"
        raise ConfigError(
            f"{checkpoint.directory}: the vocabulary has {vocabulary.size} tokens, the model {rows}", hint
        )
    return vocabulary


def require_same_vocabulary(checkpoint: Checkpoint, vocabulary: Vocabulary, data: Path | None) -> None:
    """Raise `ConfigError` unless a checkpoint has the vocabulary of the data.

    data: the data directory, for the message; None for data in memory.
    """
    if load_vocabulary(checkpoint).fingerprint != vocabulary.fingerprint:
        raise ConfigError(
            f"{data or 'the data'}: has another vocabulary than {checkpoint.directory}",
            f"build the data with that vocabulary: albert data … --vocab {checkpoint.directory}",
        )


# ---------------------------------------------------------------- writing


def write_checkpoint(
    model: nn.Module,
    directory: Path,
    architecture: str,
    labels: tuple[str, ...] = (),
    finetuned_task: FinetunedTask | None = None,
    *,
    multi_label: bool = False,
    order_classes: tuple[str, ...] = (),
) -> None:
    """Write `config.json` and `model.safetensors` into a directory that the caller has staged (`store`).

    Tied weights are stored once. `architecture` is the class without its model type, such as `ForPreTraining`, or
    `Model` for a bare encoder. `labels` and `multi_label` are described in `config_to_json`. `order_classes` are the
    classes of the sentence head (`ORDER_CLASSES`), empty if the head is not trained.
    """
    config = cast(ModelConfig, model.config)
    tensors = model.state_dict()
    write_tensors(tensors, config, directory, architecture)
    values = config_to_json(config, architecture, labels, multi_label=multi_label)
    if architecture == "ForPreTraining":
        values[ORDER_CLASSES_KEY] = list(order_classes)
    if finetuned_task is not None:
        head = _describe_head(architecture, tensors)
        values |= replace(finetuned_task, head=head).to_json()
    store.write_json(directory / "config.json", values)


def write_vocabulary(vocabulary: Vocabulary, directory: Path, max_length: int) -> None:
    """Write a vocabulary into a directory that has a `config.json`, and the id of its padding token into that file.

    max_length: tokens to which other programs truncate a text. In transformers, the word embedding of `pad_token_id`
    has no gradient, so this id must be that of no other token.
    """
    vocabulary.copy_to(directory, max_length)
    path = directory / "config.json"
    has_padding = vocabulary.pad_id != vocabulary.sep_id  # without a padding token, `pad_id` is [SEP]'s id
    pad_token_id = vocabulary.pad_id if has_padding else None
    store.write_json(path, {**store.read_json(path), "pad_token_id": pad_token_id})


def write_tensors(tensors: Mapping[str, Tensor], config: ModelConfig, directory: Path, architecture: str) -> None:
    """Write tensors, which have our names, in fp32 as `model.safetensors`, with the names that `architecture` has."""
    hf_type = model_type(config, architecture)
    stored = {name: tensor.detach().float().cpu().contiguous() for name, tensor in tensors.items()}
    renamed = hf_names.to_hf_names(stored, config, hf_type)
    if architecture == _BARE_ARCHITECTURE:
        renamed = {name.removeprefix(f"{hf_type}."): tensor for name, tensor in renamed.items()}
    save_file(renamed, directory / WEIGHTS_FILE, metadata={"format": "pt"})
