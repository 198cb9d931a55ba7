from __future__ import annotations

from pathlib import Path

import pytest

from albert_cli.text import work_units
from albert_cli.text.work_units import split_sources


def test_work_unit_hash_changes_with_the_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    (first,) = split_sources([str(path)])
    before = first.sha256()
    path.write_text("two")
    (second,) = split_sources([str(path)])
    assert first.record == second.record
    assert first.size == second.size == 3
    assert before != second.sha256()


def test_work_units_of_task_and_plain_file_differ(tmp_path: Path) -> None:
    path = tmp_path / "dev.json"
    path.write_text("{}")
    sources = (str(path), f"squad:{path}", f"squad-answers:{path}")
    records = [split_sources([source])[0].record for source in sources]
    assert records[0] != records[1] != records[2] != records[0], "each is another text"


def write_files(folder: Path, count: int, size: int, ending: str) -> str:
    for number in range(count):
        (folder / f"{number:02d}{ending}").write_bytes(b"x" * size)
    return str(folder)


# Each file has 60 % of the first unit's bytes, and all have less than `_MAX_WORK_UNITS` units have.
@pytest.mark.parametrize(("size", "ending"), [(60, ".txt"), (15, ".txt.gz")])
def test_split_sources_bounds_units_of_middle_sized_files(
    size: int, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_units, "_MAX_WORK_UNITS", 8)
    units = split_sources([write_files(tmp_path, 13, size, ending)], unit_bytes=100)
    assert [len(unit.parts) for unit in units] == [3, 3, 3, 3, 1]


def test_split_sources_bounds_units_of_compressed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_units, "_MAX_WORK_UNITS", 1)
    units = split_sources([write_files(tmp_path, 8, 100, ".txt.gz")], unit_bytes=100)  # 400 bytes of text each
    assert [len(unit.parts) for unit in units] == [8]


def test_split_sources_weights_leave_units_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_units, "_MAX_WORK_UNITS", 2)
    write_files(tmp_path, 6, 60, ".txt")
    sources = [f"{tmp_path / f'{number:02d}.txt'}@{1 + number % 2}" for number in range(6)]
    assert len(split_sources(sources, unit_bytes=100)) == 6
