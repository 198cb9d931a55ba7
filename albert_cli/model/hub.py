"""Checkpoints in and out: a checkpoint directory *is* a Hugging Face model directory.

It is one of Hugging Face's ALBERT or, for shapes with E = H and nothing shared, of its BERT. A shape that neither
expresses keeps our names under a `model_type` of our own, so that no other library loads it silently wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from albert_cli import console, hub_access, store
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.model import hf_names
from albert_cli.model.config import CUSTOM_MODEL_TYPE, ModelConfig
from albert_cli.model.hf_config import CLASS_PREFIXES, MULTI_LABEL, config_to_json, model_type
from albert_cli.model.weight_files import WEIGHTS_FILE as WEIGHTS_FILE
from albert_cli.model.weight_files import describe_file, describe_layout, find_weight_files, read_weights
from albert_cli.model.weight_files import read_tensors as read_tensors
from albert_cli.text.vocabulary import Vocabulary

INIT_DIRECTORY: Final = "init"  # the weights at step 0 of a run with [init] in its recipe
# The bare encoder's class; its files leave out the prefix `albert.` or `bert.` that every other file has.
_BARE_ARCHITECTURE: Final = "Model"
_ORDER_LABELS_KEY: Final = "sentence_order_labels"
# Classes 0, 1 and 2 of the sentence head, by `data.sentence_loss`: 1 means swapped, as in the released ALBERT models.
ORDER_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "sop": ("in order", "swapped"),
    "nsp": ("next", "other document"),
    "three-way": ("in order", "swapped", "other document"),
    "none": (),
}
_HUB_FILES: Final = ("config.json", "spiece.model", "tokenizer*.json", "special_tokens_map.json", "vocab.txt")
_MISMATCH_HINT: Final = "use a weights file and a config.json that belong together"


@dataclass(frozen=True)
class FinetunedTask:
    """A task checkpoint's task: its name, the number of texts in an input, and the length limit in tokens.

    `settings` belong to the kind of task: with them, inputs are encoded and outputs decoded as in training.
    """

    task: str
    inputs: int
    max_seq_length: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the keys of `config.json`: the name under Hugging Face's key, the rest under one of our own."""
        values = {name: value for name, value in asdict(self).items() if value != {}}
        return {"finetuning_task": values.pop("task"), "albert_task": values}


# ---------------------------------------------------------------- reading


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk: its shape, config.json, the type whose names its file uses, and tensors by our names."""

    directory: Path
    config: ModelConfig
    values: Mapping[str, object]
    type: str
    tensors: dict[str, Tensor]

    @property
    def architecture(self) -> str | None:
        """The class of its heads, without its prefix (`ForPreTraining`); None if the file names none."""
        architectures = self.values.get("architectures")
        if not isinstance(architectures, list) or not architectures:
            return None
        return str(architectures[0]).removeprefix(CLASS_PREFIXES[self.type])

    @property
    def labels(self) -> tuple[str, ...]:
        """The sequence classifier's labels in order; empty without one, and for multi-label classification."""
        # The heads for multiple choice and for tokens also call a layer `classifier`.
        if self.is_multi_label or self.architecture not in (None, "ForSequenceClassification"):
            return ()
        return self.output_names

    @property
    def order_labels(self) -> tuple[str, ...]:
        """Names of the sentence head's classes; empty if the checkpoint has no trained sentence head."""
        head = self.tensors.get("order.bias")
        if head is None or "encoder.pooler.weight" not in self.tensors:
            return ()
        names = self.values.get(_ORDER_LABELS_KEY)
        if isinstance(names, list) and len(names) == len(head):
            return tuple(map(str, names))
        if store.is_listed(self.directory / "recipe.toml"):  # our own, whose sentence loss is "none"
            return ()
        return ORDER_LABELS["nsp" if self.type == "bert" else "sop"]

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the rows of a layer called `classifier`, whatever its task; empty if there is none."""
        outputs = len(self.tensors.get("classifier.weight", ()))
        names = self.values.get("id2label")
        if not isinstance(names, dict):  # Hugging Face omits two outputs with its default names
            names = {}
        return tuple(str(names.get(str(number), f"LABEL_{number}")) for number in range(outputs))

    @property
    def is_multi_label(self) -> bool:
        """True if a text may have several of the classifier's labels, each with its own probability."""
        return "classifier.weight" in self.tensors and self.values.get("problem_type") == MULTI_LABEL

    @property
    def has_unnamed_labels(self) -> bool:
        """True if another program wrote the classifier and its labels have default names."""
        labels = self.labels
        default_names = tuple(f"LABEL_{number}" for number in range(len(labels)))
        return bool(labels) and self.finetuned_task is None and labels == default_names

    @property
    def finetuned_task(self) -> FinetunedTask | None:
        """Its task if `albert` fine-tuned it; None for a pretrained model and for other programs' classifiers."""
        match self.values:
            case {
                "finetuning_task": str(task),
                "albert_task": {"inputs": (0 | 1 | 2) as inputs, "max_seq_length": int(max_seq_length), **others},
            } if max_seq_length >= 5:  # the minimum of recipes
                settings = others.get("settings")
                return FinetunedTask(task, inputs, max_seq_length, settings if isinstance(settings, dict) else {})
        return None

    @property
    def max_length(self) -> int:
        """The tokens at which inputs are truncated: as in fine-tuning, else the model's positions."""
        positions = self.config.max_position_embeddings
        finetuned = self.finetuned_task
        return positions if finetuned is None else min(positions, finetuned.max_seq_length)


def find_checkpoint(name: str) -> Path:
    """Return the directory of a checkpoint name: a model directory, a run (its newest step), or a Hub id.

    Raises `CheckpointError` if there is none.
    """
    path = Path(name)
    if (path / "config.json").is_file():
        return path
    if path.is_dir():
        if steps := store.saved_steps(path):
            return steps[-1]
        content, hint = describe_layout(path)
        raise CheckpointError(f"{path}: contains {content}", hint)
    if path.is_file():
        content, hint = describe_file(path)
        raise CheckpointError(f"{path}: is {content}", hint)
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not name.startswith("."):
        return _download(name)
    raise CheckpointError(
        f"{path}: no such directory", "name a checkpoint directory, a run, or a Hub id such as albert/albert-base-v2"
    )


def _download(name: str) -> Path:
    """Download a model's files from the Hub; pickled weights only if there are no others."""
    directory = hub_access.download_hub_files(name, [*_HUB_FILES, "*.safetensors", f"{WEIGHTS_FILE}.index.json"])
    if any(directory.glob("*.safetensors")):
        return directory
    return hub_access.download_hub_files(name, [*_HUB_FILES, "pytorch_model*.bin", "pytorch_model.bin.index.json"])


def find_init_checkpoint(name: str) -> Path:
    """Return the step-0 weights of the run that a checkpoint belongs to; raise `ConfigError` if there are none."""
    checkpoint = find_checkpoint(name)
    init = checkpoint.parent / INIT_DIRECTORY
    steps = {step.name for step in checkpoint.parent.glob("step-*")}
    if checkpoint.name not in {INIT_DIRECTORY, *steps} or not init.is_dir():
        raise ConfigError(
            f"{name}: there are no weights of step 0 ({init})",
            "name a run of `albert pretrain` or one of its steps; its recipe must set something in [init]",
        )
    return init


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read and verify a checkpoint directory; raise `CheckpointError` if something is missing or damaged.

    A directory with a manifest is hashed first; for one of another program a note calls it unverified.
    """
    if store.read_manifest(directory) is not None:
        store.verify(directory)
    else:
        console.info(f"{directory}: not written by albert, so there are no hashes to verify")
    values = store.read_json(directory / "config.json")
    config = ModelConfig.from_hf(values, str(directory / "config.json"))
    files = find_weight_files(directory)
    _check_size(files, config)
    kind = CUSTOM_MODEL_TYPE if values.get("model_type") == CUSTOM_MODEL_TYPE else model_type(config)
    stored = read_weights(files)
    _check_floating_point(directory, stored)
    tensors = hf_names.from_hf_names(stored, config, kind)
    decoder = next((stored[name] for name in stored if name.endswith("predictions.decoder.weight")), None)
    is_tied = values.get("tie_word_embeddings") is not False
    if is_tied and decoder is not None:  # a file may have the tied matrix under either name
        tensors.setdefault("encoder.embeddings.word.weight", decoder)
    if not is_tied and decoder is not None:
        # The head here multiplies with the word table, and would predict other words than this matrix.
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("masked.")}
        console.info(
            f"{directory}: its masked-language head is left out, because it does not use the word table "
            "(tie_word_embeddings is false)"
        )
    return Checkpoint(directory, config, values, kind, tensors)


def _check_floating_point(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise `CheckpointError` for a matrix of integers: quantized weights without their scales are other weights."""
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and not tensor.is_floating_point() and name.endswith("weight"):
            message = f"{directory}: the weights are quantized: {name} has values of {tensor.dtype}"
            raise CheckpointError(message, "use the checkpoint in fp32, fp16 or bf16")


def _check_size(files: Sequence[Path], config: ModelConfig) -> None:
    """Raise `CheckpointError` if the files have less than a byte for each weight of the encoder's matrices.

    Models are built before their weights are compared, so without this check a config.json of a few bytes could
    allocate a terabyte of memory. No format that is read here needs less than a byte for a parameter.
    """
    hidden = config.hidden_size
    embeddings = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    needed = (
        embeddings * config.embedding_size
        + config.num_attention_blocks * 4 * hidden * hidden
        + config.num_feed_forward_blocks * 2 * hidden * config.intermediate_size
    )
    size = sum(path.stat().st_size for path in files)
    if size < needed:
        raise CheckpointError(
            f"{files[0]}: {size:,} bytes cannot hold the {needed:,} parameters that config.json describes",
            _MISMATCH_HINT,
        )


def verify_fingerprint(directory: Path, role: str, key: str, fingerprint: str | None) -> str:
    """Return the fingerprint of a recipe's parent or teacher; raise `ConfigError` if the recipe's `key` differs."""
    actual = store.fingerprint(directory)
    if fingerprint not in (None, actual):
        raise ConfigError(
            f"{directory}: is another {role} ({actual}) than {key} names ({fingerprint})",
            f"restore that one, or choose another --out and leave out {key}",
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


# ---------------------------------------------------------------- loading into a model


class LoadPolicy(Enum):
    """Required parts of a checkpoint; other parts of the model may be new."""

    ENCODER = "encoder"  # to fine-tune, encode or continue: heads are new, and so is the pooler if the file lacks it
    MASKED_LANGUAGE = "masked"  # also the masked-language head
    HEADS = "heads"  # also every head of the model, to predict with them
    EVERYTHING = "everything"  # every parameter, to resume

    def required_parts(self, model: nn.Module) -> set[str]:
        """Return the parts of this model that the checkpoint must contain."""
        if self is LoadPolicy.ENCODER:
            return {"encoder"}
        if self is LoadPolicy.MASKED_LANGUAGE:
            return {"encoder", "masked"}
        parts = {_part_name(name) for name in model.state_dict()}
        return parts - {"pooler"} if self is LoadPolicy.HEADS else parts


def load_weights(model: nn.Module, checkpoint: Checkpoint, policy: LoadPolicy = LoadPolicy.ENCODER) -> None:
    """Copy a checkpoint into a model.

    Raises `CheckpointError` if a required tensor is missing or has another shape, and if the file has encoder tensors
    that its config.json does not describe.
    """
    required = policy.required_parts(model)
    if "masked" in required and "masked.bias" not in checkpoint.tensors:
        raise CheckpointError(f"{checkpoint.directory}: has no masked-language head", "name a pretrained checkpoint")
    parameters = model.state_dict()
    matching = {
        name: tensor
        for name, tensor in checkpoint.tensors.items()
        if name in parameters and parameters[name].shape == tensor.shape
    }
    new = [name for name in parameters if name not in matching]
    for name in new:
        _check_new(name, parameters[name], checkpoint, required)
    unused = [name for name in checkpoint.tensors if name not in matching]
    encoder_prefixes = ("encoder.", f"{checkpoint.type}.")
    undescribed = [name for name in unused if name.startswith(encoder_prefixes) and _part_name(name) != "pooler"]
    if undescribed:
        raise CheckpointError(
            f"{checkpoint.directory / WEIGHTS_FILE}: {undescribed[0]} is not a part of the encoder in config.json",
            _MISMATCH_HINT,
        )
    with torch.no_grad():
        for name, tensor in matching.items():
            parameters[name].copy_(tensor)
    if any(_part_name(name) == "pooler" for name in new):
        console.warn(f"{checkpoint.directory}: has no pooler; it starts from random weights")
    if store.read_manifest(checkpoint.directory) is None:  # for our own files this is no news
        _report_parts(checkpoint.directory, list(matching), new, unused)


def _check_new(name: str, parameter: Tensor, checkpoint: Checkpoint, required: set[str]) -> None:
    """Raise `CheckpointError` if a parameter that the checkpoint cannot fill is required."""
    stored = checkpoint.tensors.get(name)
    part = _part_name(name)
    if part not in required and not (part == "pooler" and stored is not None):
        return
    owner = "encoder" if part in ("encoder", "pooler") else f"{part} head"
    problem = "is missing"
    if stored is not None:
        problem = f"has shape {tuple(stored.shape)}, not {tuple(parameter.shape)}"
    raise CheckpointError(
        f"{checkpoint.directory / WEIGHTS_FILE}: does not cover the {owner}: {name} {problem}", _MISMATCH_HINT
    )


def _report_parts(directory: Path, matching: list[str], new: list[str], unused: list[str]) -> None:
    """Print which parts of another program's file match the model, are new, or are not used."""
    lists = {f"{len(matching)} tensors matched": matching, "new": new, "not used": unused}
    summaries = [
        f"{title}: {', '.join(sorted(set(map(_part_name, names))))}" for title, names in lists.items() if names
    ]
    console.info(f"{directory}: {'; '.join(summaries)}")


def _part_name(name: str) -> str:
    """Return the part of a model that a parameter belongs to: encoder, pooler, or the name of a head."""
    return "pooler" if name.startswith("encoder.pooler.") else name.split(".")[0]


# ---------------------------------------------------------------- writing


def write_checkpoint(
    model: nn.Module,
    directory: Path,
    architecture: str,
    labels: tuple[str, ...] = (),
    finetuned_task: FinetunedTask | None = None,
    *,
    multi_label: bool = False,
    order_labels: tuple[str, ...] = (),
) -> None:
    """Write `config.json` and `model.safetensors` into a staged directory; tied weights are stored once.

    `architecture` is Hugging Face's class without its prefix (`ForPreTraining`; `Model` for a bare encoder).
    `order_labels` name the outputs of the sentence head (`ORDER_LABELS`).
    """
    config = cast(ModelConfig, model.config)
    write_tensors(model.state_dict(), config, directory, architecture)
    values = config_to_json(config, architecture, labels, multi_label=multi_label)
    if order_labels:
        values[_ORDER_LABELS_KEY] = list(order_labels)
    if finetuned_task is not None:
        values |= finetuned_task.to_json()
    store.write_json(directory / "config.json", values)


def write_tensors(tensors: Mapping[str, Tensor], config: ModelConfig, directory: Path, architecture: str) -> None:
    """Write tensors by our names as `model.safetensors` of this class."""
    kind = model_type(config, architecture)
    renamed = hf_names.to_hf_names(
        {name: tensor.detach().float().cpu().contiguous() for name, tensor in tensors.items()}, config, kind
    )
    if architecture == _BARE_ARCHITECTURE:
        renamed = {name.removeprefix(f"{kind}."): tensor for name, tensor in renamed.items()}
    save_file(renamed, directory / WEIGHTS_FILE, metadata={"format": "pt"})
