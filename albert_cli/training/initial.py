"""Starting pretraining from another checkpoint's weights: depth growth (the paper's appendix A.1).

Where layers share their weights, a deeper network is the same weights repeated more often, so it can start from a
shallower one's. A network of several groups can start every group from group 0, as the reference code does.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from albert_cli import console, store
from albert_cli.errors import ConfigError
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.text.vocabulary import Vocabulary

# What must be alike, because tensors have its size or compute something else with another value.
_ALIKE = (
    "vocab_size", "embedding_size", "hidden_size", "num_attention_heads", "intermediate_size", "hidden_act",
    "max_position_embeddings", "type_vocab_size", "layer_norm_eps", "inner_group_num", "has_projection",
)  # fmt: skip


@dataclass(frozen=True)
class InitialSettings:
    """`[initial]`: the checkpoint whose weights a run starts from; its own optimizer and schedule begin anew.

    `checkpoint` is a directory, a run (its newest step) or a Hub id. `fingerprint` is filled in by the first start; a
    recipe that gives it is refused any other checkpoint.
    """

    checkpoint: str
    fingerprint: str | None = None


def read_parent(initial: InitialSettings, model: ModelConfig, vocabulary: Vocabulary) -> hub.Checkpoint:
    """The checkpoint to start from, once it is known to fit a run's shape and vocabulary.

    Raises `ConfigError` naming what differs, `CheckpointError` where there is no checkpoint.
    """
    parent = hub.read(hub.find(initial.checkpoint))
    found = store.fingerprint(parent.directory)
    if initial.fingerprint not in (None, found):
        raise ConfigError(
            f"{parent.directory}: is another checkpoint ({found}) than initial.fingerprint names "
            f"({initial.fingerprint})",
            "restore that one, or choose another --out and leave out initial.fingerprint",
        )
    for name in _ALIKE:
        theirs, ours = getattr(parent.config, name), getattr(model, name)
        if theirs != ours:
            raise ConfigError(
                f"{parent.directory}: {name} is {theirs}, the recipe's model has {ours}",
                "a network can only start from one of its own widths; depth and groups may differ",
            )
    if hub.vocabulary_of(parent).fingerprint != vocabulary.fingerprint:
        raise ConfigError(
            f"{parent.directory}: was trained with another vocabulary than that of the data",
            "make the data with this one: albert data … --vocab " + str(parent.directory),
        )
    source_blocks(model, parent.config)
    return parent


def source_blocks(child: ModelConfig, parent: ModelConfig) -> tuple[list[int], list[int]]:
    """For each attention and each feed-forward block of the child, the parent's block whose weights it starts from.

    With as many blocks on both sides each starts from its own, whatever the depth. Otherwise all start from the
    parent's group 0, which must be shared by layers: raises `ConfigError` where every layer of the parent has weights
    of its own, or where the child has fewer blocks.
    """
    has = (parent.num_attention_blocks, parent.num_feed_forward_blocks)
    needs = (child.num_attention_blocks, child.num_feed_forward_blocks)
    inner = parent.inner_group_num
    is_shared = parent.sharing == "all" and (
        parent.num_hidden_groups < parent.num_hidden_layers or has == (inner, inner)
    )
    if has != needs and not (is_shared and all(n >= h for n, h in zip(needs, has, strict=True))):
        raise ConfigError(
            f"a model of {_blocks(needs)} cannot start from one of {_blocks(has)}",
            "start from as many of each, or from a model whose layers share one group of both",
        )
    attention, feed_forward = (
        list(range(need)) if has == needs else [k % inner for k in range(need)] for need in needs
    )
    return attention, feed_forward


def _blocks(counts: tuple[int, int]) -> str:
    return f"{counts[0]} attention and {counts[1]} feed-forward blocks"


def carry_over(model: PretrainingModel, parent: hub.Checkpoint) -> None:
    """Copy the parent's weights into the model, and say what was carried over."""
    tensors = {n: t for n, t in parent.tensors.items() if not n.startswith(("encoder.attention.", "encoder.feed_"))}
    for part, sources in zip(("attention", "feed_forward"), source_blocks(model.config, parent.config), strict=True):
        for block, source in enumerate(sources):
            prefix = f"encoder.{part}.{source}."
            of_source = {n.removeprefix(prefix): t for n, t in parent.tensors.items() if n.startswith(prefix)}
            tensors |= {f"encoder.{part}.{block}.{leaf}": tensor for leaf, tensor in of_source.items()}
    hub.load_into(model, dataclasses.replace(parent, tensors=tensors))
    heads = [head for head in ("masked", "order") if f"{head}.bias" in tensors]
    said = f"and the heads {' and '.join(heads)}" if heads else "without a head"
    console.note(
        f"starts from {parent.directory}: {_how(model.config, parent.config)}, {said}; the optimizer begins anew"
    )


def _how(child: ModelConfig, parent: ModelConfig) -> str:
    """What became of the parent's blocks."""
    depths = f"{child.num_hidden_layers} layers where it had {parent.num_hidden_layers}"
    has = (parent.num_attention_blocks, parent.num_feed_forward_blocks)
    needs = (child.num_attention_blocks, child.num_feed_forward_blocks)
    if has != needs:
        return f"its group 0 in all of {_blocks(needs)}, {depths}"
    return "all of its encoder" if parent.blocks() == child.blocks() else f"its encoder, {depths}"
