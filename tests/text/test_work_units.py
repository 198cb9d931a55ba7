from __future__ import annotations

from pathlib import Path

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
