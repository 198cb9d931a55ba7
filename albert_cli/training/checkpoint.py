"""Saving and resuming a run: a step's directory holds the model for everyone, and what training needs.

State is weights, two moments and a small JSON. Nothing of a data loader is saved, because a batch is a
function of (seed, step), and no random generator, because it is reseeded from (seed, step, micro-batch).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from albert_cli import console, store
from albert_cli.errors import CheckpointError
from albert_cli.random import step_seed
from albert_cli.training.lamb import Lamb

OPTIMIZER = "optimizer.safetensors"


@dataclass
class TrainState:
    """Where a run stands: updates done, seconds trained, and the best evaluation so far (None: none yet)."""

    step: int = 0
    seconds: float = 0.0
    best_score: float | None = None
    best_step: int = 0


def step_directory(out: Path, step: int) -> Path:
    """The directory of a step; the zeros make names sort as numbers."""
    return out / f"step-{step:08d}"


def saved_steps(out: Path) -> list[Path]:
    """Directories of finished checkpoints, oldest first."""
    return sorted(p for p in out.glob("step-*") if p.is_dir() and (p / store.MANIFEST).is_file())


def save(
    out: Path,
    state: TrainState,
    optimizer: Lamb,
    write_model: Callable[[Path], None],
    recipe: str,
    parents: Mapping[str, str],
    keep: int,
) -> Path:
    """Commit the checkpoint of `state.step` and delete all but the newest `keep`."""
    final = step_directory(out, state.step)
    if final in saved_steps(out):
        return final
    with store.commit_directory(final, "checkpoint", parents, _bytes_needed(out, optimizer)) as staging:
        write_model(staging)
        moments = {name: tensor.cpu() for name, tensor in optimizer.state_dict().items()}
        save_file(moments, staging / OPTIMIZER)
        store.write_json(staging / "state.json", asdict(state))
        store.write_text(staging / "recipe.toml", recipe)
    for old in saved_steps(out)[:-keep]:
        store.remove_directory(old)
    return final


def _bytes_needed(out: Path, optimizer: Lamb) -> int:
    """The size of a checkpoint: that of the last one, or else of the weights and their two moments."""
    if saved := saved_steps(out):
        return sum(path.stat().st_size for path in saved[-1].iterdir())
    return sum(3 * p.numel() * p.element_size() for p in optimizer.parameters.values())


def newest_valid(out: Path) -> Path | None:
    """The newest checkpoint whose every byte verifies; a damaged one is named, set aside and passed over."""
    steps = saved_steps(out)
    for directory in reversed(steps):
        try:
            store.verify(directory, "checkpoint")
        except CheckpointError as error:
            aside = directory.with_name(f"damaged-{directory.name}")
            if aside.exists():
                store.remove_directory(aside)
            console.warn(f"{error.message}; set aside as {aside.name}")
            directory.rename(aside)
            if directory == steps[0]:
                console.warn(f"{out}: no checkpoint is intact, so training starts from step 0")
        else:
            return directory
    return None


def restore(directory: Path, optimizer: Lamb) -> TrainState:
    """Load a verified checkpoint's moments into the optimizer and return where the run stood."""
    try:
        state = TrainState(**store.read_json(directory / "state.json"))
        optimizer.load_state_dict(load_file(directory / OPTIMIZER), state.step)
        return state
    except (KeyError, TypeError, RuntimeError, OSError, SafetensorError) as error:
        raise CheckpointError(f"{directory}: does not fit this run's model ({error})") from None


def seed_for(seed: int, step: int, part: int) -> None:
    """Seed the generators of the computation (dropout) for one micro-batch of one step."""
    torch.manual_seed(step_seed(seed, step, part))
