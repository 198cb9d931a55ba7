"""The campaigns in short: some damaged files, some failing calls, some kills. Each goes on for hours by its command."""

from __future__ import annotations

from pathlib import Path

import pytest

from albert_cli.errors import CheckpointError
from tests.campaigns import calls, damage, faults, kills, world

with_calls = pytest.mark.skipif(not calls.is_possible(), reason="this kernel does not hand system calls over")


@with_calls
def test_damaged_files(tmp_path: Path) -> None:
    wanted = {"data", "pretrain, resumed", "inspect --examples", "encode"}
    by_name = {command.name: command for command in world.commands() if command.name in wanted}
    tally = damage.run(damage.Campaign(tmp_path, 3, list(by_name.values())), range(24))
    assert not tally.faulty, tally.faulty[0]
    assert tally.codes[CheckpointError.exit_code] > tally.codes[0], "most damage is found"


@with_calls
def test_failing_calls(tmp_path: Path) -> None:
    printed: list[str] = []
    campaign = faults.Campaign(tmp_path, ["data"])
    assert faults.table(campaign, 1, ["ENOSPC", "EIO", "power"], 1, printed.append) == 0, "\n".join(printed)


def test_kills(tmp_path: Path) -> None:
    tallies = kills.campaign(tmp_path, ["pretrain", "pretrain, 2 ranks"], 4, 1)
    for name, tally in tallies.items():
        assert not tally.faults, name
        assert tally.kills == 2, name
