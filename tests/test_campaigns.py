"""A few cases of the campaigns `damage`, `faults` and `kills`; the commands of the campaigns run for hours."""

from __future__ import annotations

import gc
import math
import shutil
from pathlib import Path

import pytest
import torch

from albert_cli.errors import CheckpointError
from tests.campaigns import calls, damage, faults, forked, kills, round_trips, world

with_calls = pytest.mark.skipif(not calls.is_possible(), reason="this kernel cannot notify a process of system calls")


class Garbage:
    """A reference cycle that writes a file when it is finalized."""

    def __init__(self, path: Path) -> None:
        self.cycle = self
        self.path = path

    def __del__(self) -> None:
        self.path.touch()


def test_fork_does_not_finalize_objects_of_its_parent(tmp_path: Path) -> None:
    gc.disable()
    try:
        Garbage(tmp_path / "finalized")
        result = forked.run(["params", "albert-base"], tmp_path, tmp_path / "log", run_first=gc.collect)
        assert result.code == 0 and not (tmp_path / "finalized").exists()
    finally:
        gc.enable()
        gc.collect()
    assert (tmp_path / "finalized").exists(), "the parent finalizes it"


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifacts that the commands of the tests read; none of the commands reads a fine-tuned run."""
    return world.make(tmp_path_factory.mktemp("campaigns") / "world", ())


@pytest.fixture
def folder(tmp_path: Path, artifacts: Path) -> Path:
    """A folder in which the artifacts of a campaign already exist."""
    shutil.copytree(artifacts, tmp_path / "world")
    return tmp_path


@pytest.mark.slow
@with_calls
def test_commands_handle_damaged_files(folder: Path) -> None:
    names = {"data", "pretrain, resumed", "inspect --examples", "encode"}
    by_name = {command.name: command for command in world.commands() if command.name in names}
    tally = damage.run(damage.Campaign(folder, 3, list(by_name.values())), range(24))
    assert not tally.faulty, tally.faulty[0]
    assert tally.codes[CheckpointError.exit_code] > tally.codes[0], "commands must detect most of the damage"


@pytest.mark.parametrize(
    ("path", "message", "is_named"),
    [
        ("text/a.txt", "error: text/a.txt:3: not valid UTF-8", True),
        ("text/a.txt", "error: a text of the input cannot be read", False),
        ("data/shards/0/ids.bin", "error: data/shards/0: damaged", True),
        ("data/shards/0/ids.bin", "error: the data has no tokens", False),
        ("run/step-4/model.safetensors", "error: step-4/model.safetensors: too short", True),
        ("run/step-4/model.safetensors", "error: cannot run with these weights", False),
        ("run/step-4/spiece.model", "error: data: has another vocabulary than run\nhint: build the data", True),
        ("recipe.toml", "error: tiny.toml: unknown key", True),
    ],
)
def test_damaged_file_is_named_by_path_not_word(tmp_path: Path, path: str, message: str, is_named: bool) -> None:
    command = world.Command("pretrain", ("pretrain", "tiny.toml"), ("data",))
    assert damage.names_file(message, tmp_path / path, tmp_path, command) is is_named


def test_difference_of_outputs_that_are_not_finite_is_nan() -> None:
    batch = {"attention_mask": torch.ones(1, 2)}
    difference = round_trips.largest_difference(
        lambda _: [torch.full((1, 2, 3), torch.nan), torch.zeros(1, 3)],
        lambda _: [torch.zeros(1, 2, 3), torch.zeros(1, 3)],
        [batch],
    )
    assert math.isnan(difference)


@pytest.mark.slow
@with_calls
def test_command_survives_failing_system_calls(folder: Path) -> None:
    printed: list[str] = []
    campaign = faults.Campaign(folder, ["data"])
    assert faults.table(campaign, 1, ["ENOSPC", "EIO", "power"], 1, printed.append) == 0, "\n".join(printed)


@pytest.mark.slow
def test_killed_runs_resume_to_the_same_bytes(folder: Path) -> None:
    tallies = kills.campaign(folder, ["pretrain", "pretrain, 2 ranks"], 4, 1)
    for name, tally in tallies.items():
        assert not tally.faults, name
        assert tally.kills == 2, name
