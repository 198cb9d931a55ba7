"""Starting pretraining from another checkpoint: from its weights alone, or going on where its run ended.

Depth growth (the paper's appendix A.1) takes the weights: where layers share them, a deeper network is the same weights
repeated more often, so it can start from a shallower one's. A network of several groups can start every group from
group 0, as the reference code does. Training longer, on other text or without dropout (§4.8) goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albert_cli import config, console, store
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.informed_init import PositionGrowth, resize_positions
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training import checkpoint
from albert_cli.training.settings import RESUME_SAFE_KEYS, ScheduleSettings

# What must be alike, because tensors have its size or compute something else with another value.
_EQUAL_KEYS = (
    "vocab_size", "embedding_size", "hidden_size", "num_attention_heads", "intermediate_size", "hidden_act",
    "type_vocab_size", "layer_norm_eps", "inner_group_num", "has_projection",
)  # fmt: skip


@dataclass(frozen=True)
class WarmStart:
    """`[warm_start]`: the checkpoint that a run starts from; exactly one of `checkpoint` and `continues`.

    `checkpoint`, a directory, a run (its newest step) or a Hub id: its weights; optimizer and schedule begin anew.
    With `stack` a deeper model repeats the other's layers from the bottom, which grows layers that share nothing.
    `continues`, a run or one of its steps: its moments and its step as well. The rate follows `[schedule]`, whose steps
    count from the first run's beginning, and does not warm up again; with the data, seed and batch of that run the
    examples go on where it ended. Where the model has more positions than the checkpoint, `positions` says how they are
    made of its own (`model.starts.with_positions`).

    The first start fills in the rest: `fingerprint`, with which a recipe is refused any other checkpoint; and of a run
    that continues the `step` at which it begins, and its `changes` to the recipe and the data of the run before.
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
                "checkpoint takes the weights of any model, continues also the moments and the step of a run",
            )
        if self.stack and self.checkpoint is None:
            raise ConfigError(
                "warm_start.stack goes with warm_start.checkpoint", "a run that continues keeps its layers"
            )


@dataclass(frozen=True)
class PreviousRun:
    """The run that a run continues, where it stands in a step's directory; `recipe` has every default filled in."""

    directory: Path
    step: int
    recipe: Mapping[str, Any]
    data: str | None

    @staticmethod
    def read(directory: Path, defaults: Mapping[str, Any]) -> PreviousRun:
        """The run of a step; raises `CheckpointError` where it is no step of pretraining."""
        found = None
        if all((directory / name).is_file() for name in (checkpoint.OPTIMIZER_FILE, "state.json", "recipe.toml")):
            found = store.read_toml(directory / "recipe.toml")
        manifest = store.read_manifest(directory)
        if found is None or manifest is None or "task" in found:
            raise CheckpointError(
                f"{directory}: is no step of a run of `albert pretrain` with its {checkpoint.OPTIMIZER_FILE}, "
                "so it cannot be continued",
                "warm_start.checkpoint starts from the weights alone",
            )
        step = checkpoint.read_state(directory).step
        recipe = config.merge_values(defaults, found)
        return PreviousRun(directory, step, recipe, manifest.parents.get("data"))

    @property
    def warmup(self) -> int:
        """The number of its warm-up steps."""
        return ScheduleSettings(**self.recipe["schedule"]).warmup

    def changes(self, recipe: Mapping[str, Any], data: str) -> tuple[str, ...]:
        """What a recipe and data change, a line each; not what a continued run does not use or compute with."""
        before = dict(self.recipe)
        if self.warmup == recipe["schedule"].get("warmup_steps"):
            before = config.merge_values(before, {"schedule": {"warmup_steps": self.warmup}})
        lines = [
            *config.list_differences(before, recipe),
            *config.list_differences({"data": self.data}, {"data": data}),
        ]
        named = {line: line.split(":")[0] for line in lines}
        unused = ("warm_start", "init", "masked_bias")
        return tuple(n for n, key in named.items() if key not in RESUME_SAFE_KEYS and key.split(".")[0] not in unused)


def load_parent(warm_start: WarmStart, model: ModelConfig, vocabulary: Vocabulary) -> hub.Checkpoint:
    """The checkpoint to start from; raises `ConfigError` where it does not fit, `CheckpointError` if there is none."""
    if warm_start.continues is not None and not Path(warm_start.continues).is_dir():
        hint = "name a run of `albert pretrain` or one of its steps; warm_start.checkpoint takes a model of the Hub"
        raise CheckpointError(f"{warm_start.continues}: no such directory", hint)
    parent = hub.read_checkpoint(hub.find_checkpoint(str(warm_start.continues or warm_start.checkpoint)))
    hub.verify_fingerprint(parent.directory, "checkpoint", "warm_start.fingerprint", warm_start.fingerprint)
    for name in _EQUAL_KEYS:
        theirs, ours = getattr(parent.config, name), getattr(model, name)
        if theirs != ours:
            raise ConfigError(
                f"{parent.directory}: {name} is {theirs}, the recipe's model has {ours}",
                "a network can only start from one of its own widths; depth and groups may differ",
            )
    if hub.load_vocabulary(parent).fingerprint != vocabulary.fingerprint:
        raise ConfigError(
            f"{parent.directory}: was trained with another vocabulary than that of the data",
            "make the data with this one: albert data … --vocab " + str(parent.directory),
        )
    map_parent_blocks(model, parent.config, warm_start.stack)
    has, needs = ((*_block_counts(shape), shape.max_position_embeddings) for shape in (parent.config, model))
    if warm_start.continues is not None and has != needs:
        raise ConfigError(
            f"{parent.directory}: has moments of {_describe_blocks(has[:2])} and {has[2]} positions; the model differs",
            "warm_start.checkpoint starts from the weights alone",
        )
    return resize_positions(parent, model.max_position_embeddings, warm_start.positions)


def map_parent_blocks(child: ModelConfig, parent: ModelConfig, stack: bool = False) -> tuple[list[int], list[int]]:
    """For each attention and each feed-forward block of the child, the parent's block whose weights it starts from.

    With as many blocks on both sides each starts from its own, whatever the depth. With `stack` the parent's blocks are
    repeated in their order (progressive stacking, Gong et al., 2019). Otherwise all start from the parent's group 0,
    which must be shared by layers: raises `ConfigError` where every layer of the parent has weights of its own, or
    where the child has fewer blocks.
    """
    has, needs, inner = _block_counts(parent), _block_counts(child), parent.inner_group_num
    is_shared = parent.sharing == "all" and (
        parent.num_hidden_groups < parent.num_hidden_layers or has == (inner, inner)
    )
    grows = all(n >= h for n, h in zip(needs, has, strict=True))
    if has != needs and not (grows and (stack or is_shared)):
        raise ConfigError(
            f"a model of {_describe_blocks(needs)} cannot start from one of {_describe_blocks(has)}",
            "start from as many of each, or from a model whose layers share one group of both",
        )
    repeated = has if stack or has == needs else (inner, inner)
    attention, feed_forward = ([k % r for k in range(n)] for n, r in zip(needs, repeated, strict=True))
    return attention, feed_forward


def _block_counts(model: ModelConfig) -> tuple[int, int]:
    return model.num_attention_blocks, model.num_feed_forward_blocks


def _describe_blocks(counts: tuple[int, int]) -> str:
    return f"{counts[0]} attention and {counts[1]} feed-forward blocks"


def copy_parent_weights(
    model: PretrainingModel, parent: hub.Checkpoint, optimizer: str = "the optimizer begins anew", stack: bool = False
) -> None:
    """Copy the parent's weights into the model, with a note of what was carried over."""
    tensors = {n: t for n, t in parent.tensors.items() if not n.startswith(("encoder.attention.", "encoder.feed_"))}
    blocks_from = map_parent_blocks(model.config, parent.config, stack)
    for part, sources in zip(("attention", "feed_forward"), blocks_from, strict=True):
        for block, source in enumerate(sources):
            prefix = f"encoder.{part}.{source}."
            of_source = {n.removeprefix(prefix): t for n, t in parent.tensors.items() if n.startswith(prefix)}
            tensors |= {f"encoder.{part}.{block}.{leaf}": tensor for leaf, tensor in of_source.items()}
    hub.load_weights(model, dataclasses.replace(parent, tensors=tensors))
    how = f"its encoder, {model.config.num_hidden_layers} layers where it had {parent.config.num_hidden_layers}"
    heads = [head for head in ("masked", "order") if f"{head}.bias" in tensors]
    with_heads = f"and the heads {' and '.join(heads)}" if heads else "without a head"
    console.info(f"starts from {parent.directory}: {how}, {with_heads}; {optimizer}")
