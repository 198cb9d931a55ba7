"""Warm start: pretraining that begins with the weights of another checkpoint, or continues its run.

Depth growth (appendix A.1) uses the weights alone. Where layers share them, a deeper network repeats the same weights
more often, so it can start from a shallower one. A network of several groups can start every group from group 0, as in
the reference code. Training longer, on other text or without dropout (§4.8) continues a run.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from albert_cli import console
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.informed_init import PositionGrowth, resize_positions
from albert_cli.text.vocabulary import Vocabulary

# Keys of the model that must equal the parent's: they set tensor sizes, or the function that the weights compute.
_EQUAL_KEYS: Final = (
    "vocab_size", "embedding_size", "hidden_size", "num_attention_heads", "intermediate_size", "hidden_act",
    "type_vocab_size", "layer_norm_eps", "inner_group_num", "has_projection",
)  # fmt: skip

# The recipe's key to name in an error, where the compared property is not a key itself.
_KEY_TO_SET: Final = {"has_projection": "always_project"}


@dataclass(frozen=True)
class WarmStart:
    """`[warm_start]`: the checkpoint that a run starts from; exactly one of `checkpoint` and `continues`.

    `checkpoint` (a checkpoint directory, a run, whose newest step is taken, or a Hub id) gives its weights; optimizer
    and schedule restart. With `stack` a deeper model repeats the parent's layers from the bottom, which grows models
    without sharing.

    `continues` (a run or one of its steps) gives moments and step as well. The rate follows `[schedule]`, whose steps
    count from the beginning of the first run, without a second warmup. With the same data, seed and batch the examples
    continue too. If the model has more positions than the checkpoint, `positions` tells how to fill them
    (`model.informed_init.resize_positions`).

    The first start records the other keys: the parent's `fingerprint`, so that resuming with another parent fails; and
    with `continues` the `step` at which this run begins, and its `changes` to the recipe and the data of that run.
    """

    checkpoint: str | None = None
    fingerprint: str | None = None
    continues: str | None = None
    stack: bool = False
    positions: PositionGrowth = "tile"
    step: int | None = None
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


def load_parent(warm_start: WarmStart, model: ModelConfig, vocabulary: Vocabulary) -> hub.Checkpoint:
    """Load the checkpoint to start from, its position embeddings resized to the number in `model`.

    Raises `ConfigError` if it does not fit the model, the vocabulary or the recipe's fingerprint, and `CheckpointError`
    if there is none.
    """
    if warm_start.continues is not None and not Path(warm_start.continues).is_dir():
        hint = "name a run of `albert pretrain` or one of its steps; warm_start.checkpoint takes a model of the Hub"
        raise CheckpointError(f"{warm_start.continues}: no such directory", hint)
    parent = hub.read_checkpoint(hub.find_checkpoint(str(warm_start.continues or warm_start.checkpoint)))
    hub.verify_fingerprint(parent.directory, "checkpoint", "warm_start.fingerprint", warm_start.fingerprint)
    for name in _EQUAL_KEYS:
        value = getattr(model, name)
        parent_value = getattr(parent.config, name)
        if value != parent_value:
            raise ConfigError(
                f"{parent.directory}: {name} is {parent_value}, the recipe's model has {value}",
                f"leave out [model], or set model.{_KEY_TO_SET.get(name, name)} to the checkpoint's value; "
                "only depth and groups may differ",
            )
    if hub.load_vocabulary(parent).fingerprint != vocabulary.fingerprint:
        raise ConfigError(
            f"{parent.directory}: was trained with another vocabulary than the data",
            f"build the data with the checkpoint's vocabulary: albert data … --vocab {parent.directory}",
        )
    map_parent_blocks(model, parent.config, warm_start.stack)  # raises `ConfigError` before anything is trained
    if warm_start.continues is not None:
        _check_moments_fit(parent, model)
    return resize_positions(parent, model.max_position_embeddings, warm_start.positions)


def _check_moments_fit(parent: hub.Checkpoint, model: ModelConfig) -> None:
    parent_counts = _block_counts(parent.config)
    parent_positions = parent.config.max_position_embeddings
    if (parent_counts, parent_positions) != (_block_counts(model), model.max_position_embeddings):
        raise ConfigError(
            f"{parent.directory}: has moments of {_describe_blocks(parent_counts)} and {parent_positions} positions; "
            "the model differs",
            "use warm_start.checkpoint for the weights alone",
        )


def map_parent_blocks(child: ModelConfig, parent: ModelConfig, stack: bool = False) -> tuple[list[int], list[int]]:
    """For each attention and each feed-forward block of the child, return the index of the parent's block to copy.

    With equal counts each block starts from the one with the same index, whatever the depth. With `stack` the parent's
    blocks are source_counts in their order (progressive stacking, Gong et al., 2019). Otherwise every block is a
    copy of the parent's group 0. Raises `ConfigError` if the parent shares no weights between layers, or if the child
    has fewer blocks.
    """
    parent_counts = _block_counts(parent)
    child_counts = _block_counts(child)
    group_counts = (parent.inner_group_num, parent.inner_group_num)
    has_one_group = parent_counts == group_counts
    # A model of one layer has as many groups as layers; its only group counts as shared.
    layers_share = parent.sharing == "all" and (parent.num_hidden_groups < parent.num_hidden_layers or has_one_group)
    grows = all(c >= p for c, p in zip(child_counts, parent_counts, strict=True))
    if child_counts == parent_counts or (grows and stack):
        source_counts = parent_counts
    elif grows and layers_share:
        source_counts = group_counts
    else:
        raise ConfigError(
            f"a model of {_describe_blocks(child_counts)} cannot start from one of {_describe_blocks(parent_counts)}",
            "start from a model with as many of each, or from one whose layers share one group of both",
        )
    attention = [block % source_counts[0] for block in range(child_counts[0])]
    feed_forward = [block % source_counts[1] for block in range(child_counts[1])]
    return attention, feed_forward


def _block_counts(model: ModelConfig) -> tuple[int, int]:
    return model.num_attention_blocks, model.num_feed_forward_blocks


def _describe_blocks(counts: tuple[int, int]) -> str:
    return f"{counts[0]} attention and {counts[1]} feed-forward blocks"


def copy_parent_weights(
    model: PretrainingModel, parent: hub.Checkpoint, optimizer_note: str = "the optimizer restarts", stack: bool = False
) -> None:
    """Copy the parent's weights into the model, and print what was copied; `optimizer_note` ends the line."""
    blocks = ("encoder.attention.", "encoder.feed_forward.")
    tensors = {name: tensor for name, tensor in parent.tensors.items() if not name.startswith(blocks)}
    for prefix, sources in zip(blocks, map_parent_blocks(model.config, parent.config, stack), strict=True):
        for block, source in enumerate(sources):
            for name, tensor in parent.tensors.items():
                if name.startswith(f"{prefix}{source}."):
                    tensors[name.replace(f"{prefix}{source}.", f"{prefix}{block}.", 1)] = tensor
    hub.load_weights(model, dataclasses.replace(parent, tensors=tensors))
    heads = [head for head in ("masked", "order") if f"{head}.bias" in tensors]
    copied = f"and the heads {' and '.join(heads)}" if heads else "without a head"
    console.info(
        f"starts from {parent.directory}: its encoder, {model.config.num_hidden_layers} layers from "
        f"{parent.config.num_hidden_layers}, {copied}; {optimizer_note}"
    )
