"""What a run directory needs around its loop: the lock, the saved recipe, resuming, and `status.json`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from albert_cli import __version__, config, console, store
from albert_cli.errors import BusyError, CheckpointError, ConfigError
from albert_cli.model import hub
from albert_cli.ranks import RankGroup, is_main
from albert_cli.training import checkpoint
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.settings import AUTO_KEYS, RESUME_SAFE_KEYS, TrainSettings

ResumeMode = Literal["auto", "must", "never"]


def library_versions() -> dict[str, str]:
    """Versions of what decides the numbers."""
    return {"albert": __version__, **{name: version(name) for name in ("torch", "numpy", "sentencepiece")}}


def load_saved_recipe(out: Path, resume: ResumeMode) -> dict[str, Any] | None:
    """The recipe of a run that `out` already holds, or None for a fresh start.

    Raises `BusyError` when `out` holds something else (or anything, under `never`), `ConfigError` when there
    is nothing to resume under `must`.
    """
    holds = [p for p in out.iterdir() if p.name != ".lock"] if out.is_dir() else []
    path = out / "recipe.toml"
    if resume == "never" and holds:
        raise BusyError(f"{out}: is not empty", "choose another --out, or --resume auto to go on with what is there")
    if path.is_file():
        saved = store.read_toml(path)
        if not isinstance(saved.get("train"), dict):
            raise CheckpointError(f"{path}: no [train] in it")
        return saved
    if resume == "must":
        raise ConfigError(f"{out}: nothing to resume here", "leave out --resume must to start")
    if any(not p.name.startswith(".") for p in holds):
        raise BusyError(f"{out}: holds other files ({holds[0].name}, …) and no run", "choose another --out")
    return None


def check_same_recipe(out: Path, old: dict[str, Any], new: Any) -> None:
    """Refuse to resume with a recipe that computes something else; harmless keys may change.

    A key that `old` lacks was not known to the release that wrote it, which computed as the key's default does. Older
    releases wrote "auto" as it stood, and found out at every start what it means.
    """
    before = config.merge_values(config.default_values(type(new)), old)
    before["train"] |= {key: getattr(new.train, key) for key in AUTO_KEYS if before["train"][key] == "auto"}
    lines = [
        line
        for line in config.list_differences(before, config.to_toml_values(new))
        if line.split(":")[0] not in RESUME_SAFE_KEYS
    ]
    if lines:
        raise ConfigError(
            f"{out}: was started with another recipe: {'; '.join(lines)}",
            "choose another --out, or give the settings it was started with",
        )


def reuse_resolved_auto(train: TrainSettings, old: Mapping[str, Any] | None) -> TrainSettings:
    """The settings with what "auto" stood for at the first start, where `old` is the recipe of a run to go on with."""
    saved = old["train"] if old is not None else {}
    return replace(train, **{key: saved[key] for key in AUTO_KEYS if getattr(train, key) == "auto" and key in saved})


def resume_state(
    out: Path,
    model: nn.Module,
    optimizer: Optimizer,
    group: RankGroup,
    parents: Mapping[str, str],
    begin: Callable[[], TrainState] = TrainState,
) -> TrainState:
    """Take weights and moments from the newest valid checkpoint; where there is none, the state that `begin` makes.

    Rank 0 verifies and chooses; the others follow it. Raises `ConfigError` when the checkpoint was made from
    other `parents` (data, or a pretrained checkpoint) than those of this run.
    """
    directory = checkpoint.find_newest_valid(out) if group.rank == 0 else None
    if directory is not None and (manifest := store.read_manifest(directory)) is not None:
        check_parents(out, manifest.parents, parents)
    step = group.broadcast(checkpoint.step_number(directory) if directory else -1)
    if step < 0:
        return begin()
    directory = checkpoint.step_directory(out, step)
    hub.load_weights(model, hub.read_checkpoint(directory), hub.LoadPolicy.EVERYTHING)
    state = checkpoint.restore_checkpoint(directory, optimizer)
    console.info(f"{out}: going on from step {state.step}")
    return state


def check_parents(out: Path, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Refuse to go on with, or to answer by, what was made from something else."""
    for what, mark in new.items():
        if old.get(what) != mark:
            other = "other data" if what == "data" else f"another {what}"
            raise ConfigError(f"{out}: was made from {other} ({old.get(what)}, now {mark})", "choose another --out")


@dataclass
class RunStatus:
    """`status.json`: what a scheduler may ask of a run; the exit code is the one the process ends with."""

    state: str = "starting"
    exit_code: int | None = None
    step: int = 0
    total_steps: int = 0
    message: str = ""


@contextmanager
def write_run_status(out: Path) -> Iterator[RunStatus]:
    """Hold the lock of `out` and keep its `status.json` true while the block runs and after it ended.

    The block sets `state` to "running" once the directory is really its own; before that nothing is written.
    """
    if not is_main():
        yield RunStatus()
        return
    with store.lock(out):
        status, state, code, message = RunStatus(), "done", 0, ""
        try:
            yield status
        except BaseException as error:
            code = 130 if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", 1)
            state, message = {5: "diverged", 75: "interrupted"}.get(code, "failed"), str(error)
            raise
        finally:
            if status.state != "starting":
                steps = store.saved_steps(out)
                step = checkpoint.step_number(steps[-1]) if steps else status.step
                step = status.total_steps if state == "done" else step
                store.write_json(out / "status.json", asdict(RunStatus(state, code, step, status.total_steps, message)))


def mark_running(out: Path, status: RunStatus, step: int, total_steps: int) -> None:
    """Say in `status.json` that the run has begun."""
    status.state, status.step, status.total_steps = "running", step, total_steps
    if is_main():
        store.write_json(out / "status.json", asdict(status))
