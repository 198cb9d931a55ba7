"""A few cases of the campaigns `damage`, `faults` and `kills`; the commands of the campaigns run for hours."""

from __future__ import annotations

from pathlib import Path

import pytest

from albert_cli.errors import CheckpointError
from tests.campaigns import calls, damage, faults, kills, world

with_calls = pytest.mark.skipif(not calls.is_possible(), reason="this kernel cannot notify a process of system calls")


@with_calls
def test_commands_handle_damaged_files(tmp_path: Path) -> None:
    names = {"data", "pretrain, resumed", "inspect --examples", "encode"}
    by_name = {command.name: command for command in world.commands() if command.name in names}
    tally = damage.run(damage.Campaign(tmp_path, 3, list(by_name.values())), range(24))
    assert not tally.faulty, tally.faulty[0]
    assert tally.codes[CheckpointError.exit_code] > tally.codes[0], "commands must detect most of the damage"


@with_calls
def test_command_survives_failing_system_calls(tmp_path: Path) -> None:
    printed: list[str] = []
    campaign = faults.Campaign(tmp_path, ["data"])
    assert faults.table(campaign, 1, ["ENOSPC", "EIO", "power"], 1, printed.append) == 0, "\n".join(printed)


def test_killed_runs_resume_to_the_same_bytes(tmp_path: Path) -> None:
    tallies = kills.campaign(tmp_path, ["pretrain", "pretrain, 2 ranks"], 4, 1)
    for name, tally in tallies.items():
        assert not tally.faults, name
        assert tally.kills == 2, name
