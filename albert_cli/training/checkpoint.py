"""Saving and resuming a run: a step's directory holds the model for everyone, and what training needs.

State is weights, two moments and a small JSON. Nothing of a data loader is saved, because a batch is a
function of (seed, step), and no random generator, because it is reseeded from (seed, step, micro-batch).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors.torch import save_file
from torch.optim import Optimizer

from albert_cli import console, store
from albert_cli.errors import CheckpointError
from albert_cli.model import hub
from albert_cli.training.optimizers import load_optimizer_state, state_tensors

OPTIMIZER_FILE = "optimizer.safetensors"


@dataclass
class TrainState:
    """Where a run stands: updates done, seconds trained, and a task's best evaluation so far (None: none yet)."""

    step: int = 0
    seconds: float = 0.0
    best_score: float | None = None
    best_step: int = 0


def read_state(directory: Path) -> TrainState:
    """Where the run stood at a step's directory; raises `CheckpointError` where its state cannot be read."""
    return store.read_record(directory / "state.json", TrainState)


def step_directory(out: Path, step: int) -> Path:
    """The directory of a step."""
    return out / f"step-{step:08d}"


def step_number(directory: Path) -> int:
    """The number of a step's directory."""
    return int(directory.name.removeprefix("step-"))


def save_checkpoint(
    out: Path,
    state: TrainState,
    optimizer: Optimizer,
    write_model: Callable[[Path], None],
    recipe: str,
    parents: Mapping[str, str],
    keep: int,
) -> Path:
    """Commit the checkpoint of `state.step` and delete all but the newest `keep`."""
    final, saved = step_directory(out, state.step), store.saved_steps(out)
    if final in saved:
        return final
    if saved:  # it will be as large as the last one, or else have the weights and their two moments
        needed = sum(path.stat().st_size for path in saved[-1].iterdir())
    else:
        needed = sum(3 * p.nbytes for group in optimizer.param_groups for p in group["params"])
    with store.commit_directory(final, "checkpoint", parents, needed) as staging:
        write_model(staging)
        save_file({name: tensor.cpu() for name, tensor in state_tensors(optimizer).items()}, staging / OPTIMIZER_FILE)
        store.write_json(staging / "state.json", asdict(state))
        store.write_text(staging / "recipe.toml", recipe)
    prune_checkpoints(out, keep)
    return final


def prune_checkpoints(out: Path, count: int) -> None:
    """Delete all checkpoints but the newest `count`."""
    for old in store.saved_steps(out)[:-count]:
        store.remove_directory(old)


def find_newest_valid(out: Path) -> Path | None:
    """The newest checkpoint whose every byte verifies; a damaged one is named, set aside and passed over."""
    # A step without a manifest is set aside too: it would block the step that is saved there again.
    steps = sorted(p for p in out.glob("step-*") if p.name.removeprefix("step-").isdecimal())
    for directory in reversed(steps):
        try:
            store.verify(directory, "checkpoint")
            return directory
        except CheckpointError as error:
            aside = directory.with_name(f"damaged-{directory.name}")
            if aside.exists():
                store.remove_directory(aside)
            console.warn(f"{error.message}; set aside as {aside.name}")
            directory.rename(aside)
            if directory == steps[0]:
                console.warn(f"{out}: no checkpoint is intact, so training starts from step 0")
    return None


def restore_checkpoint(directory: Path, optimizer: Optimizer) -> TrainState:
    """Load a verified checkpoint's moments, return where the run stood; raises `CheckpointError` if they do not fit."""
    state, path = read_state(directory), directory / OPTIMIZER_FILE
    try:
        load_optimizer_state(optimizer, hub.read_tensors(path), state.step)
    except ValueError as error:
        hint = (
            "these moments are of another model or optimizer.name; warm_start.checkpoint starts from the weights alone"
        )
        raise CheckpointError(f"{path}: does not fit this run's model and optimizer ({error})", hint) from None
    return state
