"""Checkpoints in and out: a checkpoint directory *is* a Hugging Face model directory.

It is one of Hugging Face's ALBERT or, for not-shared shapes with E = H, of its BERT. A shape that neither expresses
keeps our names under a `model_type` of our own, so that no other library loads it silently wrong.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from albert_cli import console, hub_access, store
from albert_cli.counting.costs import count_parameters
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.model import hf_names
from albert_cli.model.config import CUSTOM_MODEL_TYPE, ModelConfig
from albert_cli.os_errors import errno_of
from albert_cli.text.vocabulary import Vocabulary

WEIGHTS_FILE = "model.safetensors"

_CLASS_PREFIXES = {
    "albert": "Albert",
    "bert": "Bert",
    CUSTOM_MODEL_TYPE: "AlbertCli",
}  # what names of classes begin with
# The bare encoder's class; its files leave out the prefix `albert.` or `bert.` that every other file has.
_BARE_ARCHITECTURE = "Model"
INIT_DIRECTORY = "init"  # of a run: its weights at step 0, where they were made with a recipe's [init]
# Heads that no class of Hugging Face has: its classes would load the encoder and draw the head anew.
CUSTOM_HEADS = ("ForBeamQuestionAnswering",)


def model_type(config: ModelConfig, architecture: str = "") -> str:
    """Which Hugging Face architecture expresses the shape: `albert`, `bert`, or our own type for neither.

    Our own too for heads (`architecture`) that Hugging Face lacks, so that nothing loads a file half.
    """
    has_own_head = architecture in CUSTOM_HEADS or (architecture == "ForPreTraining" and config.order_labels != 2)
    if has_own_head or config.group_sizes or config.is_sparse:
        return CUSTOM_MODEL_TYPE
    if config.has_projection and config.sharing in ("all", "none"):
        return "albert"  # not shared is as many groups as layers
    if not config.has_projection and config.sharing == "none":
        return "bert"
    return CUSTOM_MODEL_TYPE


# ---------------------------------------------------------------- configuration


@dataclass(frozen=True)
class FinetunedTask:
    """A task checkpoint's task: its name, the texts in an input, and the tokens at which inputs were cut.

    `settings` are the kind of task's own, for making inputs and reading outputs as in its training.
    """

    task: str
    inputs: int
    max_seq_length: int
    settings: Mapping[str, Any] = field(default_factory=dict)


def config_to_json(config: ModelConfig, architecture: str, labels: tuple[str, ...] = ()) -> dict[str, Any]:
    """`config.json`: Hugging Face's keys; `labels` name a classifier's outputs, a single one makes it a regression."""
    kind, form = model_type(config, architecture), config.attention
    left_out = {"attention_window", "attention_block"} - {f"attention_{form}"}
    if form == "full":
        left_out |= {"attention", "attention_global"}
    if kind != CUSTOM_MODEL_TYPE:
        left_out |= {"sharing", "always_project", "group_sizes", "order_labels"}
    if kind == "bert":
        left_out |= {"embedding_size", "num_hidden_groups", "inner_group_num", "classifier_dropout_prob"}
    values = {key: value for key, value in asdict(config).items() if key not in left_out}
    values["initializer_range"] = config.initial_std
    if kind == "bert":
        values["classifier_dropout"] = config.classifier_dropout_prob
    elif kind == "albert" and config.sharing == "none":
        values["num_hidden_groups"] = config.num_hidden_layers
    values |= {"model_type": kind, "architectures": [_CLASS_PREFIXES[kind] + architecture], "tie_word_embeddings": True}
    values |= {"pad_token_id": 0, "dtype": "float32"}
    if labels:
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
        values["problem_type"] = "regression" if len(labels) == 1 else "single_label_classification"
    return values


# ---------------------------------------------------------------- reading


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk: its shape, its config.json, the type whose names its file has, and tensors under ours."""

    directory: Path
    config: ModelConfig
    values: dict[str, Any]
    type: str
    tensors: dict[str, Tensor]

    @property
    def architecture(self) -> str | None:
        """The class that its heads belong to, without its prefix (`ForPreTraining`); None where the file has none."""
        named = self.values.get("architectures")
        return str(named[0]).removeprefix(_CLASS_PREFIXES[self.type]) if isinstance(named, list) and named else None

    @property
    def labels(self) -> tuple[str, ...]:
        """The sequence classifier's labels in order; empty without one, and where several may apply at once."""
        # A layer called `classifier` is also in the heads for choices and for tokens.
        if self.is_multi_label or self.architecture not in (None, "ForSequenceClassification"):
            return ()
        outputs = len(self.tensors.get("classifier.weight", ()))
        named = self.values.get("id2label")
        named = named if isinstance(named, dict) else {}
        # Hugging Face leaves out two outputs with its default names.
        return tuple(str(named.get(str(i), f"LABEL_{i}")) for i in range(outputs))

    @property
    def is_multi_label(self) -> bool:
        """Whether a text may have several of its classifier's labels, each by a probability of its own."""
        return "classifier.weight" in self.tensors and self.values.get("problem_type") == "multi_label_classification"

    @property
    def has_unnamed_labels(self) -> bool:
        """Whether its classifier comes from elsewhere, and its classes have no names."""
        labels = self.labels
        return (
            bool(labels) and self.finetuned_task is None and labels == tuple(f"LABEL_{i}" for i in range(len(labels)))
        )

    @property
    def finetuned_task(self) -> FinetunedTask | None:
        """What `albert` fine-tuned it for; None for a pretrained model and for a classifier from elsewhere."""
        match self.values:
            case {
                "finetuning_task": str(task),
                "albert_task": {"inputs": (0 | 1 | 2) as inputs, "max_seq_length": int(max_seq_length)},
            } if max_seq_length >= 5:  # as recipes have it
                settings = self.values["albert_task"].get("settings")
                return FinetunedTask(task, inputs, max_seq_length, settings if isinstance(settings, dict) else {})
        return None


def find_checkpoint(name: str) -> Path:
    """The directory that a checkpoint name means: a model directory, a run (its newest step), or a Hub id.

    Raises `CheckpointError` when there is none.
    """
    path = Path(name)
    if (path / "config.json").is_file():
        return path
    if path.is_dir():
        if steps := store.saved_steps(path):
            return steps[-1]
        raise CheckpointError(f"{path}: no checkpoint here (no config.json, no finished step-*)")
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not name.startswith("."):
        return hub_access.download_hub_files(name, ["config.json", WEIGHTS_FILE, "spiece.model", "tokenizer*.json"])
    raise CheckpointError(
        f"{path}: no such directory", "name a checkpoint directory, a run, or a Hub id such as albert/albert-base-v2"
    )


def find_init_checkpoint(name: str) -> Path:
    """The weights at step 0 of the run that a checkpoint belongs to; raises `ConfigError` where there are none."""
    found = find_checkpoint(name)
    init = found.parent / INIT_DIRECTORY
    if found.name not in (INIT_DIRECTORY, *(step.name for step in found.parent.glob("step-*"))) or not init.is_dir():
        raise ConfigError(
            f"{name}: there are no weights of step 0 ({init})",
            "name a run of `albert pretrain` or one of its steps; its recipe must set something in [init]",
        )
    return init


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read and verify a checkpoint directory; raises `CheckpointError` when something is missing or damaged.

    One with a manifest is hashed first; for one from elsewhere a note calls it unverified.
    """
    if store.read_manifest(directory) is not None:
        store.verify(directory)
    else:
        console.info(f"{directory}: not written by albert, so there are no hashes to verify")
    values = store.read_json(directory / "config.json")
    config = ModelConfig.from_hf(values, str(directory / "config.json"))
    path, wanted = directory / WEIGHTS_FILE, count_parameters(config).without_pooler
    # A model is made before its weights are looked at: a few bytes of text could ask for a terabyte of memory. A byte
    # for each parameter: no format of weights that is read here has fewer.
    if path.is_file() and (there := path.stat().st_size) < wanted:
        raise CheckpointError(
            f"{path}: {there:,} bytes cannot hold the {wanted:,} parameters that config.json asks for",
            "the file and its config.json do not belong together",
        )
    kind = CUSTOM_MODEL_TYPE if values.get("model_type") == CUSTOM_MODEL_TYPE else model_type(config)
    stored = read_tensors(path)
    tensors = hf_names.from_hf_names(stored, config, kind)
    if values.get("tie_word_embeddings") is False and any(n.endswith("predictions.decoder.weight") for n in stored):
        # Hugging Face computes with this matrix and a bias of its own; the head here has the word table.
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("masked.")}
        console.info(
            f"{directory}: its masked-language head is left out: it has a matrix of its own in the place of the word "
            "table (tie_word_embeddings is false)"
        )
    return Checkpoint(directory, config, values, kind, tensors)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """What a safetensors file holds; raises `CheckpointError` where it cannot be read."""
    with store.translate_os_errors(path):  # what torch cannot map
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            if errno_of(error) == errno.ENOMEM:  # no fault of the file's
                raise
            raise CheckpointError(f"{path}: cannot be read ({error})", "it must be in safetensors form") from None


def verify_fingerprint(directory: Path, what: str, key: str, fingerprint: str | None) -> str:
    """The fingerprint of what a recipe starts or learns from; raises `ConfigError` where its `key` names another."""
    found = store.fingerprint(directory)
    if fingerprint not in (None, found):
        raise ConfigError(
            f"{directory}: is another {what} ({found}) than {key} names ({fingerprint})",
            f"restore that one, or choose another --out and leave out {key}",
        )
    return found


def load_vocabulary(checkpoint: Checkpoint) -> Vocabulary:
    """The vocabulary beside a checkpoint; raises `ConfigError` where it is not as large as the model's."""
    vocabulary = Vocabulary.load(checkpoint.directory)
    if vocabulary.size != checkpoint.config.vocab_size:
        raise ConfigError(
            f"{checkpoint.directory}: the vocabulary has {vocabulary.size} tokens, the model "
            f"{checkpoint.config.vocab_size}",
            "the tokenizer and the weights of this directory do not belong together",
        )
    return vocabulary


def load_weights(model: nn.Module, checkpoint: Checkpoint, heads: Sequence[str] | Literal["all"] = ()) -> None:
    """Copy a checkpoint into a model; the encoder must be covered, and so must the `heads` that are named.

    The other heads may be new, and so may the pooler where only the encoder is asked for (files saved from a
    masked-language model have none). Under "all" the file must hold every parameter, as resuming needs.

    Raises `CheckpointError` naming the first tensor that is missing or has another shape, or a part of an encoder
    that the configuration does not speak of: a run that silently trains from random weights is the commonest way
    to lose a day.
    """
    if "masked" in heads and "masked.bias" not in checkpoint.tensors:
        hint = "name a pretrained checkpoint, not a task's"
        raise CheckpointError(f"{checkpoint.directory}: has no masked-language head", hint)
    own = model.state_dict()
    fitting = {n: t for n, t in checkpoint.tensors.items() if n in own and own[n].shape == t.shape}
    new = [name for name in own if name not in fitting]
    for name in new:
        found = checkpoint.tensors.get(name)
        part = name.split(".")[0]
        may_be_new = part not in ("encoder", *heads) or (found is None and name.startswith("encoder.pooler."))
        if may_be_new and heads != "all":
            continue
        head = "" if part == "encoder" else " head"
        what = "is missing" if found is None else f"has shape {tuple(found.shape)}, not {tuple(own[name].shape)}"
        raise CheckpointError(
            f"{checkpoint.directory / WEIGHTS_FILE}: does not cover the {part}{head}: {name} {what}",
            "the file and its config.json do not belong together, or it holds another architecture",
        )
    unused = [name for name in checkpoint.tensors if name not in fitting]
    of_encoder = ("encoder.", f"{checkpoint.type}.")
    if beyond := [name for name in unused if name.startswith(of_encoder) and _part_name(name) != "pooler"]:
        raise CheckpointError(
            f"{checkpoint.directory / WEIGHTS_FILE}: has more of an encoder than config.json says: {beyond[0]}",
            "the file and its config.json do not belong together",
        )
    with torch.no_grad():
        for name, tensor in fitting.items():
            own[name].copy_(tensor)
    if any(_part_name(name) == "pooler" for name in new):
        console.warn(f"{checkpoint.directory}: has no pooler; it starts from random weights")
    if store.read_manifest(checkpoint.directory) is None:  # of our own files it is known
        parts = {f"{len(fitting)} tensors matched": list(fitting), "new": new, "not used": unused}
        lists = [f"{what}: {', '.join(sorted(set(map(_part_name, those))))}" for what, those in parts.items() if those]
        console.info(f"{checkpoint.directory}: {'; '.join(lists)}")


def _part_name(name: str) -> str:
    """Which part of a model a parameter belongs to: encoder, pooler, or a head by its name."""
    return "pooler" if name.startswith("encoder.pooler.") else name.split(".")[0]


# ---------------------------------------------------------------- writing


def write_checkpoint(
    model: nn.Module,
    directory: Path,
    architecture: str,
    labels: tuple[str, ...] = (),
    finetuned_task: FinetunedTask | None = None,
) -> None:
    """Write `config.json` and `model.safetensors` into a staged directory.

    `architecture` is Hugging Face's class without its prefix (`ForPreTraining`; `Model` for a bare encoder). Tied
    weights are stored once.
    """
    config: ModelConfig = model.config  # type: ignore[assignment]
    tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in model.state_dict().items()}
    tensors = hf_names.to_hf_names(tensors, config, model_type(config, architecture))
    if architecture == _BARE_ARCHITECTURE:
        tensors = {name.removeprefix(f"{model_type(config)}."): tensor for name, tensor in tensors.items()}
    save_file(tensors, directory / WEIGHTS_FILE, metadata={"format": "pt"})
    values = config_to_json(config, architecture, labels)
    if finetuned_task is not None:  # Hugging Face's key for the name, one of our own for what it lacks
        ours = {name: value for name, value in asdict(finetuned_task).items() if value != {}}
        values |= {"finetuning_task": ours.pop("task"), "albert_task": ours}
    store.write_json(directory / "config.json", values)
