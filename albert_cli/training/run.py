"""The run directory around a training loop: its lock, its saved recipe, resuming, and `status.json`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal, TypeVar

from torch import nn
from torch.optim import Optimizer

from albert_cli import __version__, config, console, store
from albert_cli.errors import BusyError, CheckpointError, ConfigError
from albert_cli.model import hub
from albert_cli.ranks import RankGroup, is_main
from albert_cli.training import checkpoint
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.settings import AUTO_KEYS, RESUME_SAFE_KEYS, TrainSettings
from albert_cli.work_plan import current_command

ResumeMode = Literal["auto", "must", "never"]
RecipeT = TypeVar("RecipeT")


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that affect the numbers."""
    return {"albert": __version__, **{name: version(name) for name in ("torch", "numpy", "sentencepiece")}}


# ---------------------------------------------------------------- the recipe of a resumed run


def load_saved_recipe(out: Path, resume: ResumeMode, schema: type[RecipeT]) -> RecipeT | None:
    """Load the recipe of the run that `out` already holds, or return None for a fresh start.

    Raises `BusyError` if `out` holds other files than a run, or if `resume` is "never" and `out` holds any file. Raises
    `ConfigError` if `resume` is "must" and there is no run.
    """
    entries = [path for path in out.iterdir() if path.name != ".lock"] if out.is_dir() else []
    path = out / "recipe.toml"
    if resume == "never" and entries:
        raise BusyError(f"{out}: is not empty", "choose another --out, or use --resume auto to resume its run")
    if path.is_file():
        values = store.read_toml(path)
        if not isinstance(values.get("train"), dict):
            raise CheckpointError(f"{path}: has no section [train]", "restore the file, or choose another --out")
        return config.validate_recipe(schema, values, str(path))
    if resume == "must":
        raise ConfigError(f"{out}: has no run to resume", "leave out --resume must to start one")
    if any(not entry.name.startswith(".") for entry in entries):
        raise BusyError(f"{out}: holds other files ({entries[0].name}, …) and no run", "choose another --out")
    return None


def check_same_recipe(out: Path, saved: RecipeT, recipe: RecipeT) -> None:
    """Raise `ConfigError` if the recipe of a resumed run differs from the saved one in a key that affects results."""
    lines = config.list_differences(config.to_toml_values(saved), config.to_toml_values(recipe))
    differences = [line for line in lines if line.split(":")[0] not in RESUME_SAFE_KEYS]
    if differences:
        raise ConfigError(
            f"{out}: was started with another recipe: {'; '.join(differences)}",
            "choose another --out, or use the settings that the run was started with",
        )


def reuse_resolved_auto(train: TrainSettings, saved: TrainSettings | None) -> TrainSettings:
    """Replace "auto" by the value in the saved recipe, if there is one: the run resolved it at its first start."""
    if saved is None:
        return train
    return replace(train, **{key: getattr(saved, key) for key in AUTO_KEYS if getattr(train, key) == "auto"})


# ---------------------------------------------------------------- the newest checkpoint of a resumed run


def resume_state(
    out: Path,
    model: nn.Module,
    optimizer: Optimizer,
    group: RankGroup,
    parents: Mapping[str, str],
    init: Callable[[], TrainState] = TrainState,
) -> TrainState:
    """Load weights and moments from the newest valid checkpoint; without one, return the state that `init` creates.

    Rank 0 verifies and chooses the checkpoint, the other ranks follow. Raises `ConfigError` if the checkpoint has other
    `parents` (data, or a pretrained checkpoint) than this run.
    """
    newest = checkpoint.find_newest_valid(out) if group.rank == 0 else None
    if newest is not None and (manifest := store.read_manifest(newest)) is not None:
        check_parents(out, manifest.parents, parents)
    step = group.broadcast(-1 if newest is None else checkpoint.step_number(newest))
    if step < 0:
        return init()
    directory = checkpoint.step_directory(out, step)
    hub.load_weights(model, hub.read_checkpoint(directory), hub.LoadPolicy.EVERYTHING)
    state = checkpoint.restore_optimizer(directory, optimizer)
    console.info(f"{out}: resuming from step {state.step}")
    return state


def check_parents(out: Path, saved: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Raise `ConfigError` if an output was created from other data, or another checkpoint, than `current`."""
    for name, fingerprint in current.items():
        if saved.get(name) != fingerprint:
            other = "other data" if name == "data" else f"another {name}"
            raise ConfigError(
                f"{out}: was started with {other} ({saved.get(name)}, now {fingerprint})", "choose another --out"
            )


# ---------------------------------------------------------------- the status of a run


@dataclass
class RunStatus:
    """`status.json`: the state of a run for schedulers; `exit_code` is None while its process runs."""

    state: str = "starting"
    exit_code: int | None = None
    step: int = 0
    total_steps: int = 0
    message: str = ""
    host: str = ""
    command: str = ""  # resumes the run


_FAILURES = {5: "diverged", 75: "interrupted"}  # by exit code


@contextmanager
def write_run_status(out: Path) -> Iterator[RunStatus]:
    """Lock `out`, and keep `status.json` up to date while the block runs and after it.

    Nothing is written until the block calls `mark_running`, because `out` may hold files of another run until then.
    """
    if not is_main():
        yield RunStatus()
        return
    with store.lock(out):
        status = RunStatus()
        try:
            yield status
        except BaseException as error:
            code = 130 if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", 1)
            steps = store.saved_steps(out)
            step = checkpoint.step_number(steps[-1]) if steps else status.step
            _write_end(out, status, RunStatus(_FAILURES.get(code, "failed"), code, step, message=str(error)))
            raise
        _write_end(out, status, RunStatus("done", 0, status.total_steps))


def mark_running(out: Path, status: RunStatus, step: int, total_steps: int) -> None:
    """Write `status.json` at the beginning of the training loop."""
    status.state = "running"
    status.step = step
    status.total_steps = total_steps
    status.host = socket.gethostname()
    status.command = current_command()
    if is_main():
        store.write_json(out / "status.json", asdict(status))


def _write_end(out: Path, status: RunStatus, end: RunStatus) -> None:
    """Write the final status, unless the block ended before `mark_running`."""
    if status.state != "starting":
        end = replace(end, total_steps=status.total_steps, host=status.host, command=status.command)
        store.write_json(out / "status.json", asdict(end))
