"""Tests of `training.checkpoint`: saving the state of a run and restoring it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.model import weight_files
from albert_cli.training.checkpoint import (
    OPTIMIZER_FILE,
    StepWindow,
    TrainState,
    find_newest_valid,
    prune_checkpoints,
    read_state,
    restore_optimizer,
    save_checkpoint,
    step_directory,
)
from albert_cli.training.optimizers import make_optimizer, state_tensors, update_weights
from albert_cli.training.settings import OptimizerSettings
from tests.helpers import failing_disk
from tests.helpers.jobs import MakeJob, gradients


def test_restore_optimizer_returns_state_and_moments(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job()
    settings = OptimizerSettings()
    optimizer = make_optimizer(job.model, settings)
    restored = make_optimizer(job.model, settings)
    gradients(job)
    update_weights(optimizer, 0.01)
    window = StepWindow({"loss": 0.1 + 0.2}, {"loss": 2}, tokens=64, flops=1e9, seconds=0.5)
    state = TrainState(step=7, seconds=12.5, best_score=-3.25, best_step=5, window=window)
    directory = save_checkpoint(tmp_path, state, optimizer, job.write_model, "# recipe\n", {"data": "abc"}, keep=2)
    repeated = save_checkpoint(tmp_path, state, optimizer, job.write_model, "# recipe\n", {}, keep=2)
    assert repeated == directory
    assert restore_optimizer(directory, restored) == state
    saved = state_tensors(optimizer)
    loaded = state_tensors(restored)
    assert saved.keys() == loaded.keys() == load_file(directory / OPTIMIZER_FILE).keys()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in saved.items())


def test_read_state_of_an_older_version_has_no_window(tmp_path: Path) -> None:
    store.write_json(tmp_path / "state.json", {"step": 7, "seconds": 12.5, "best_score": None, "best_step": 0})
    assert read_state(tmp_path) == TrainState(step=7, seconds=12.5)


@pytest.mark.parametrize("fault", ["missing", "transposed", "a number", "of another optimizer", "no safetensors"])
def test_restore_optimizer_wrong_tensors_raise(fault: str, make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job()
    optimizer = make_optimizer(job.model, OptimizerSettings())
    directory = save_checkpoint(tmp_path, TrainState(), optimizer, job.write_model, "# recipe\n", {}, keep=2)
    tensors = load_file(directory / OPTIMIZER_FILE)
    name = "first.encoder.embeddings.word.weight"
    changes = {
        "missing": {},
        "transposed": {name: tensors[name].T.contiguous()},
        "a number": {name: torch.tensor([1.0])},
        "of another optimizer": {name: tensors[name], f"third.{name[6:]}": tensors[name].clone()},
    }
    del tensors[name]
    save_file(tensors | changes.get(fault, {}), directory / OPTIMIZER_FILE)
    if fault == "no safetensors":
        (directory / OPTIMIZER_FILE).write_bytes(b"something")
    reported = f"third.{name[6:]}" if fault == "of another optimizer" else name
    message = f"does not fit this run's model and optimizer .*{reported}"
    if fault == "no safetensors":
        message = "cannot be read"
    with pytest.raises(CheckpointError, match=rf"{OPTIMIZER_FILE}: {message}"):
        restore_optimizer(directory, optimizer)


def test_restore_optimizer_memory_error_is_raised(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    optimizer = make_optimizer(job.model, OptimizerSettings())
    directory = save_checkpoint(tmp_path, TrainState(), optimizer, job.write_model, "# recipe\n", {}, keep=2)
    path = directory / OPTIMIZER_FILE
    for error in (
        RuntimeError(f"unable to mmap 99 bytes from file <{path}>: Cannot allocate memory (12)"),
        OSError(errno.ENOMEM, "Cannot allocate memory", str(path)),
        MemoryError(),
    ):

        def fail(path: Path, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(weight_files, "load_file", fail)
            with pytest.raises(type(error)):
                restore_optimizer(directory, optimizer)


def test_prune_checkpoints_keeps_copies_of_the_user(tmp_path: Path) -> None:
    for name in ("step-00000010", "step-00000010-good", "step-00000020", "step-00000030", "step-00000030-good"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
    prune_checkpoints(tmp_path, keep=1)
    remaining = sorted(path.name for path in tmp_path.iterdir())
    assert remaining == ["step-00000010-good", "step-00000030", "step-00000030-good"]
    assert store.step_number(store.saved_steps(tmp_path)[-1]) == 30


@pytest.mark.parametrize(
    ("call", "name"), [("stat", "manifest.json"), ("read", "manifest.json"), ("stat", "state.json")]
)
def test_find_newest_valid_failing_disk_renames_nothing(
    call: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        with store.commit_directory(step_directory(tmp_path, step), "checkpoint") as staging:
            store.write_json(staging / "state.json", {})
    with monkeypatch.context() as patch:
        failing_disk.fail_calls(patch, call, name)
        with pytest.raises(CheckpointError, match=name):
            find_newest_valid(tmp_path)
    assert find_newest_valid(tmp_path) == step_directory(tmp_path, 2)
