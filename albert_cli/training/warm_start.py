"""Warm start: pretraining that begins with the weights of another checkpoint, or continues its run.

There are two uses. A deeper model starts from the weights of a shallower one (appendix A.1). Longer training, on other
text or without dropout (§4.8), continues a run with its moments.

If layers share weights, a deeper model only repeats the same weights more often, so it can start from a shallower one.
A model of several groups can start every group from the parent's group 0, as in ALBERT's released code.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from albert_cli import console, store
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.formatting import count_of
from albert_cli.model import hub, loading
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.informed_init import PositionGrowth, resize_positions
from albert_cli.text.vocabulary import Vocabulary

# Keys of the model that must equal the parent's: they set tensor sizes, or the function that the weights compute.
_EQUAL_KEYS: Final = (
    "vocab_size", "embedding_size", "hidden_size", "num_attention_heads", "intermediate_size", "hidden_act",
    "type_vocab_size", "layer_norm_eps", "inner_group_num", "has_projection",
)  # fmt: skip

# For a property in `_EQUAL_KEYS` that is no key of a recipe: the key that sets it, for the hint of the error.
_KEY_TO_SET: Final = {"has_projection": "always_project"}


@dataclass(frozen=True)
class WarmStart:
    """`[warm_start]`: the checkpoint that a run starts from; exactly one of `checkpoint` and `continues`.

    `checkpoint` (a checkpoint directory, a run, whose newest step is used, or a Hub id) gives its weights; optimizer
    and schedule restart. With `stack` a deeper model repeats the parent's layers from the bottom, which grows models
    without sharing.

    `continues` (a run or one of its steps) gives the moments and the step as well. The learning rate follows
    `[schedule]`. Its steps count from the beginning of the continued run, so there is no second warmup. With the same
    data, seed and batch size the sequence of examples continues too.

    If the model has more positions than the checkpoint, `positions` selects how to fill them
    (`model.informed_init.resize_positions`).

    The run's first start records the other keys:

    * `fingerprint` is the parent's; resuming with another parent fails.
    * `step`, only with `continues`, is the step at which this run begins.
    * `finished_warmup`, only with `continues`, is the continued run's number of warmup steps if it has finished them.
    * `changes`, only with `continues`, lists the changes of recipe and data since the continued run.
    """

    checkpoint: str | None = None
    fingerprint: str | None = None
    continues: str | None = None
    stack: bool = False
    positions: PositionGrowth = "tile"
    step: int | None = None
    finished_warmup: int | None = None
    changes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if (self.checkpoint is None) == (self.continues is None):
            raise ConfigError(
                "[warm_start] needs either checkpoint or continues",
                "set checkpoint for the weights of any model, or continues for the moments and the step of a run too",
            )
        if self.stack and self.checkpoint is None:
            raise ConfigError(
                "warm_start.stack requires warm_start.checkpoint; a continued run keeps its layers",
                "leave out warm_start.stack",
            )


def find_parent(warm_start: WarmStart) -> Path:
    """Return the directory of the checkpoint to start from; raise `CheckpointError` if it does not exist."""
    if warm_start.continues is not None and not Path(warm_start.continues).is_dir():
        hint = "name a run of `albert pretrain` or one of its steps; warm_start.checkpoint takes a model of the Hub"
        raise CheckpointError(*store.no_directory_message(Path(warm_start.continues), hint))
    name = warm_start.continues or warm_start.checkpoint  # exactly one is set
    return hub.find_checkpoint(str(name))


def load_parent(
    warm_start: WarmStart,
    model: ModelConfig,
    vocabulary: Vocabulary,
    data: Path | None = None,
    *,
    quiet: bool = False,
) -> hub.Checkpoint:
    """Load the checkpoint to start from, with its position embeddings resized to the model's number of positions.

    vocabulary: that of the data directory `data`. quiet: do not print how the positions are resized. Raises
    `CheckpointError` if the checkpoint does not exist, and `ConfigError` if it does not fit the model, the vocabulary
    or the fingerprint in `warm_start`.
    """
    parent = hub.read_checkpoint(find_parent(warm_start))
    hub.verify_fingerprint(parent.directory, "checkpoint", "warm_start.fingerprint", warm_start.fingerprint)
    hub.require_same_vocabulary(parent, vocabulary, data)
    for key in _EQUAL_KEYS:
        value = getattr(model, key)
        parent_value = getattr(parent.config, key)
        if value != parent_value:
            raise ConfigError(
                f"{parent.directory}: {key} is {parent_value}, the recipe's model has {value}",
                f"leave out [model], or set model.{_KEY_TO_SET.get(key, key)} to the checkpoint's value; "
                "only depth and groups may differ",
            )
    map_parent_sublayers(model, parent.config, stack=warm_start.stack)  # raises `ConfigError` if they do not fit
    # The moments cannot be resized: each must have the shape of its weight in the model.
    if warm_start.continues is not None and _moment_sizes(parent.config) != _moment_sizes(model):
        raise ConfigError(
            f"{parent.directory}: has moments of {_describe_sizes(parent.config)}; "
            f"the recipe's model has {_describe_sizes(model)}",
            "use the data.sentence_loss and the model of the run that saved the checkpoint, "
            "or load only its weights with warm_start.checkpoint",
        )
    return resize_positions(parent, model.max_position_embeddings, warm_start.positions, quiet=quiet)


def map_parent_sublayers(
    child: ModelConfig, parent: ModelConfig, *, stack: bool = False
) -> tuple[list[int], list[int]]:
    """Return the index of the parent's sub-layer that each of the child's attention and feed-forward sub-layers copies.

    With equal numbers of sub-layers, each is a copy of the one with the same index. With `stack` the parent's
    sub-layers are repeated in their order (progressive stacking, Gong et al., 2019). Otherwise the sub-layers of the
    parent's group 0 are repeated. Raises `ConfigError` if the child has fewer sub-layers, or if it has more of them
    without `stack` and the parent's layers share no weights.
    """
    parent_counts = _sublayer_counts(parent)
    child_counts = _sublayer_counts(child)
    grows = all(c >= p for c, p in zip(child_counts, parent_counts, strict=True))
    # A model of one layer has as many groups as layers, but its only group counts as shared.
    has_shared_group = parent.num_hidden_groups < parent.num_hidden_layers or parent.num_hidden_groups == 1
    if child_counts == parent_counts or (grows and stack):
        source_counts = parent_counts
    elif grows and parent.sharing == "all" and has_shared_group:
        # Repeat only group 0, which has this many sub-layers of either kind.
        source_counts = (parent.inner_group_num, parent.inner_group_num)
    else:
        raise ConfigError(
            f"a model of {_describe_sublayers(child_counts)} cannot start from one of "
            f"{_describe_sublayers(parent_counts)}",
            "start from a model with the same numbers of sub-layers, or from a smaller one whose layers share weights; "
            "for any other smaller model set warm_start.stack=true",
        )
    attention = [index % source_counts[0] for index in range(child_counts[0])]
    feed_forward = [index % source_counts[1] for index in range(child_counts[1])]
    return attention, feed_forward


def _sublayer_counts(model: ModelConfig) -> tuple[int, int]:
    """Return the numbers of attention and of feed-forward sub-layers."""
    return model.num_attention_sublayers, model.num_feed_forward_sublayers


def _describe_sublayers(counts: tuple[int, int]) -> str:
    """Return the result of `_sublayer_counts` as words for a message."""
    return f"{counts[0]} attention and {counts[1]} feed-forward sub-layers"


def _moment_sizes(model: ModelConfig) -> tuple[tuple[int, int], int, int]:
    """Return the numbers of the model's sub-layers, positions and classes of the order head."""
    return _sublayer_counts(model), model.max_position_embeddings, model.order_labels


def _describe_sizes(model: ModelConfig) -> str:
    """Return the result of `_moment_sizes` as words for a message."""
    sublayer_counts, positions, order_labels = _moment_sizes(model)
    return f"{_describe_sublayers(sublayer_counts)}, {positions} positions and {order_labels} order labels"


def copy_parent_weights(
    model: PretrainingModel,
    parent: hub.Checkpoint,
    optimizer_note: str = "the optimizer restarts",
    *,
    stack: bool = False,
) -> None:
    """Copy the parent's weights into the model, with the sub-layers of `map_parent_sublayers`; print what was copied.

    `optimizer_note` ends the printed line. Heads that the parent lacks, or has for other classes, keep the model's
    weights.
    """
    prefixes = ("encoder.attention.", "encoder.feed_forward.")
    tensors = {name: tensor for name, tensor in parent.tensors.items() if not name.startswith(prefixes)}
    sublayer_maps = map_parent_sublayers(model.config, parent.config, stack=stack)
    for prefix, parent_indices in zip(prefixes, sublayer_maps, strict=True):
        for index, parent_index in enumerate(parent_indices):
            parent_prefix = f"{prefix}{parent_index}."
            for name, tensor in parent.tensors.items():
                if name.startswith(parent_prefix):
                    tensors[f"{prefix}{index}.{name.removeprefix(parent_prefix)}"] = tensor
    loading.load_weights(model, dataclasses.replace(parent, tensors=tensors))
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    parameters = model.state_dict()
    heads = ("masked", "order")
    copied = [head for head in heads if shapes.get(f"{head}.bias") == parameters[f"{head}.bias"].shape]
    new = [head for head in heads if head not in copied]
    if not copied:
        heads_note = "without a head"
    elif new:
        heads_note = f"and the head {copied[0]}, with a new head {new[0]}"
    else:
        heads_note = f"and the heads {' and '.join(copied)}"
    console.info(
        f"starts from {parent.directory}: its encoder, {count_of(model.config.num_hidden_layers, 'layer')} from "
        f"{parent.config.num_hidden_layers}, {heads_note}; {optimizer_note}"
    )
