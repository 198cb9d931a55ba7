from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from albert_cli import journal
from albert_cli.data.records import BuildSettings, TextCounts
from albert_cli.data.sentence_order import warn_missing_pairs
from albert_cli.training.pretrain import pretrain
from tests.helpers.data_directories import build

WriteText = Callable[[str], Path]


@pytest.mark.parametrize(
    ("counts", "loss", "message"),
    [
        (TextCounts(10, 10, 100, 100), None, "100% of the text is in documents of one sentence"),
        (TextCounts(10, 30, 100, 51), "sop", "51% of the text"),
        (TextCounts(10, 10, 100, 100), "three-way", "-s data.sentence_loss=none"),
        (TextCounts(10, 30, 100, 50), "sop", ""),
        (TextCounts(10, 10, 100, 100), "none", ""),
        (TextCounts(2, 30, 100, 0), "nsp", ""),
        (TextCounts(), None, ""),
    ],
)
def test_warn_missing_pairs_names_the_remedy(
    counts: TextCounts, loss: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_missing_pairs(counts, loss)
    error = capsys.readouterr().err
    assert message in error if message else not error


@pytest.mark.parametrize(("loss", "message"), [("nsp", "one document, or copies of one"), ("sop", "")])
def test_nsp_warns_without_other_documents(loss: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    warn_missing_pairs(TextCounts(2, 30, 100, 0), loss, has_other_documents=False)
    error = capsys.readouterr().err
    assert message in error if message else not error


def test_build_and_pretrain_warn_without_sentence_pairs(
    tiny_vocabulary: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(
        "\n\n".join(f"Kra bade wi luma {word} ste nepi roro." for word in ["figo", "suta", "vewi", "zo"] * 40)
    )
    report = build([str(text)], tiny_vocabulary, tmp_path / "data", BuildSettings(holdout=0.1))
    train = report.facts.totals["train"]
    assert train.unpaired_tokens == train.tokens
    assert "100% of the text is in documents of one sentence" in capsys.readouterr().err
    steps = ["schedule.total_steps=3", "schedule.warmup_steps=1", "train.log_every=1", "train.eval_every=1"]
    result = pretrain(str(recipe), tmp_path / "data", tmp_path / "run", steps, device="cpu")
    assert "100% of the text is in documents of one sentence" in capsys.readouterr().err
    assert not any("order" in name for name in result.metrics)
    for record in journal.read_journal(tmp_path / "run" / "metrics.jsonl"):
        assert not any("order" in name for name in record), "a mean over nothing is not logged"
