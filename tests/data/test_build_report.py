from __future__ import annotations

from pathlib import Path

import pytest

from albert_cli.data.records import BuildSettings
from albert_cli.text.read_settings import ReadSettings
from tests.helpers.data_directories import WriteFiles, build


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_report_warns_if_few_tokens_are_held_out(small_vocabulary: Path, write_files: WriteFiles, out: Path) -> None:
    report = build(write_files(1), small_vocabulary, out, BuildSettings(holdout=1e-9))
    assert report.facts.totals["heldout"].documents == 1
    assert "use a larger --holdout" in report.format()


@pytest.mark.parametrize(
    ("text", "weight"),
    [("Ba de fi.\nMa ne lu.\n", ""), ("Ba de fi.\nMa ne lu.\n", "@2"), ("Ba de fi.\n\nBa de fi.\n", "")],
)
def test_report_explains_why_nothing_is_held_out(
    text: str, weight: str, small_vocabulary: Path, tmp_path: Path, out: Path
) -> None:
    source = tmp_path / "text.txt"
    source.write_text(text)
    report = build([f"{source}{weight}"], small_vocabulary, out, BuildSettings(holdout=0.01))
    assert report.facts.totals["heldout"].documents == 0
    assert "because the text is one document, or copies of one: use --document line" in report.format()
    assert "--holdout" not in report.format()


def test_report_hint_for_one_document_helps(small_vocabulary: Path, tmp_path: Path, out: Path) -> None:
    source = tmp_path / "text.txt"
    source.write_text("Ba de fi.\nMa ne lu.\n")
    settings = BuildSettings(holdout=0.01, read=ReadSettings(document="line"))
    assert build([str(source)], small_vocabulary, out, settings).facts.totals["heldout"].documents == 1
