from __future__ import annotations

from pathlib import Path

import pytest

from albert_cli.data.records import BuildSettings
from tests.helpers.data_directories import WriteFiles, build


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_report_warns_if_few_tokens_are_held_out(small_vocabulary: Path, write_files: WriteFiles, out: Path) -> None:
    report = build(write_files(1), small_vocabulary, out, BuildSettings(holdout=1e-9))
    assert report.facts.totals["heldout"].documents == 0
    assert "use a larger --holdout" in report.format()
