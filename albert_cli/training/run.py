"""Manage the directory of a run: its lock, its saved recipe, its newest checkpoint, and `status.json`.

`pretrain` and `finetune` use it to start a run, to resume one, and to report the run's state to schedulers.
"""

from __future__ import annotations

import shlex
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal, TypeVar

from torch import nn
from torch.optim import Optimizer

from albert_cli import __version__, config, console, store
from albert_cli.errors import BusyError, CheckpointError, ConfigError, DivergedError, Interrupted
from albert_cli.model import hub, loading
from albert_cli.ranks import RankGroup, is_main
from albert_cli.training import checkpoint
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.settings import RESUME_SAFE_KEYS
from albert_cli.work_plan import RunStatus, command_here, current_command

ResumeMode = Literal["auto", "must", "never"]
RecipeT = TypeVar("RecipeT")


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that affect a run's results, by name."""
    return {"albert": __version__, **{name: version(name) for name in ("torch", "numpy", "sentencepiece")}}


# ---------------------------------------------------------------- the recipe of a resumed run


def load_saved_recipe(out: Path, resume: ResumeMode, schema: type[RecipeT]) -> RecipeT | None:
    """Load the recipe of the run that `out` already holds; return None if a new run can start there.

    Hidden files do not count: rank 0 may be locking `out` at this moment, which creates some. Raises `BusyError` if
    `out` holds other files than a run's, or if `resume` is "never" and `out` holds any file.
    Raises `ConfigError` if `resume` is "must" and there is no run, and `CheckpointError` if the recipe is damaged.
    """
    entries: list[Path] = []
    if out.is_dir():
        entries = [entry for entry in out.iterdir() if not entry.name.startswith(".")]
    path = out / "recipe.toml"
    if resume == "never" and entries:
        raise BusyError(f"{out}: is not empty", "choose another --out, or use --resume auto to resume its run")
    if path.is_file():
        values = store.read_toml(path)
        if not isinstance(values.get("train"), dict):  # a cut-off file must not resume with the default settings
            raise CheckpointError(f"{path}: has no section [train]", "restore the file, or choose another --out")
        return config.validate_recipe(schema, values, str(path))
    if resume == "must":
        raise ConfigError(f"{out}: has no run to resume", "leave out --resume must to start one")
    if entries:
        raise BusyError(f"{out}: holds other files ({entries[0].name}, …) and no run", "choose another --out")
    return None


def check_same_recipe(out: Path, saved: RecipeT, recipe: RecipeT) -> None:
    """Raise `ConfigError` if the recipe of a resumed run differs from the saved one in a key that affects results."""
    lines = config.list_differences(config.to_toml_values(saved), config.to_toml_values(recipe))
    # A line is `section.key: old -> new`.
    differences = [line for line in lines if line.split(":")[0] not in RESUME_SAFE_KEYS]
    if differences:
        raise ConfigError(
            f"{out}: was started with another recipe: {'; '.join(differences)}",
            f"use the settings that the run was started with, or {_describe_new_start(out)}",
        )


def _describe_new_start(out: Path) -> str:
    """Return the end of a hint: how to train with other settings or data than the run in `out`."""
    path = out / "recipe.toml"
    if store.saved_steps(out) and path.is_file() and "task" not in store.read_toml(path):
        return f"choose another --out; to train the model further, add -s warm_start.continues={shlex.quote(str(out))}"
    return "choose another --out"


# ---------------------------------------------------------------- the newest checkpoint of a resumed run


def resume_state(
    out: Path, model: nn.Module, optimizer: Optimizer, group: RankGroup, parents: Mapping[str, str]
) -> TrainState | None:
    """Load weights and moments from the newest valid checkpoint, and return the state that training resumes from.

    Returns None if there is no checkpoint; the weights do not change then. Rank 0 verifies and chooses the checkpoint,
    and all ranks load it. Raises `ConfigError` if the checkpoint has other `parents` (fingerprints of data or
    checkpoints) than this run.
    """
    step = None
    if group.rank == 0:
        newest = checkpoint.find_newest_valid(out)
        if newest is not None:
            manifest = store.read_manifest(newest)
            assert manifest is not None, "a valid checkpoint has a manifest"
            check_parents(out, manifest.parents, parents)
            step = store.step_number(newest)
    # If rank 0 raises an error above, the other ranks do not wait here forever: gloo closes rank 0's connections, and
    # with NCCL the launcher or the heartbeat ends the other ranks (`ranks.process_group`).
    step = group.broadcast(step)
    if step is None:
        return None
    directory = checkpoint.step_directory(out, step)
    loading.load_weights(model, hub.read_checkpoint(directory), loading.LoadPolicy.EVERYTHING)
    state = checkpoint.restore_optimizer(directory, optimizer)
    console.info(f"{out}: resuming from step {state.step}")
    return state


def check_parents(out: Path, saved: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Raise `ConfigError` if a fingerprint in `current` differs from the one that the output `out` has saved."""
    for name, fingerprint in current.items():
        if saved.get(name) != fingerprint:
            other = "other data" if name == "data" else f"another {name}"
            command = ""
            if (out / "status.json").is_file():
                status = store.read_record(out / "status.json", RunStatus)
                command = command_here(status.command, status.working_directory, status.directory, out)
            # The command shows the other directory. If it is the same directory, its files have changed.
            suffix = f" by: {command}" if command else ""
            raise ConfigError(f"{out}: was started with {other}{suffix}", _describe_new_start(out))


# ---------------------------------------------------------------- the status of a run


# By exit code; every other code is "failed".
_FAILURE_STATES = {DivergedError.exit_code: "diverged", Interrupted.exit_code: "interrupted"}


@contextmanager
def write_run_status(out: Path) -> Iterator[RunStatus]:
    """Lock `out` while the block runs, and write the end of the run to `status.json` after it.

    The file is written by `mark_running`, which the block calls when training begins, by `write_step`, which the
    training loop calls when it logs or saves, and when the block ends. If the block ends before `mark_running`,
    nothing is written, because `out` may hold files of another run until then.
    """
    if not is_main():
        yield RunStatus("starting")
        return
    with store.lock(out):
        status = RunStatus(
            "starting",
            host=socket.gethostname(),
            command=current_command(),
            working_directory=str(Path.cwd()),
            directory=str(out.resolve()),
        )
        try:
            yield status
        except BaseException as error:
            code = getattr(error, "exit_code", 1)
            if isinstance(error, KeyboardInterrupt):
                code = 130  # 128 + SIGINT, as a shell reports it
            steps = store.saved_steps(out)
            if steps:
                status.step = store.step_number(steps[-1])
            _write_end(out, status, _FAILURE_STATES.get(code, "failed"), code, str(error))
            raise
        status.step = status.total_steps
        _write_end(out, status, "done", exit_code=0)


def mark_running(out: Path, status: RunStatus, step: int, total_steps: int) -> None:
    """Write the first `status.json`, when the training loop begins; only rank 0 writes it."""
    status.state = "running"
    status.step = step
    status.total_steps = total_steps
    if is_main():
        write_step(out, status, step)


def write_step(out: Path, status: RunStatus, step: int) -> None:
    """Write `status.json` with the number of the last step, and flush it to the disk; only rank 0 calls this function.

    `status` itself keeps the step from which the run has started: a run that fails before its first checkpoint ends
    with that step.
    """
    store.write_json(out / "status.json", asdict(replace(status, step=step)))


def _write_end(out: Path, status: RunStatus, state: str, exit_code: int, message: str = "") -> None:
    """Write the last `status.json`, unless the run ended before `mark_running`."""
    if status.state != "starting":
        end = replace(status, state=state, exit_code=exit_code, message=message)
        store.write_json(out / "status.json", asdict(end))
