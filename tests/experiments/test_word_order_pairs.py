"""Tests of `experiments.word_order_pairs`: the content of the pairs, and an experiment with them as its task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from albert_cli import store
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import InputError
from albert_cli.experiments import word_order_pairs
from albert_cli.experiments.minimal_pairs import read_minimal_pairs
from albert_cli.experiments.word_order_pairs import PAIRS_FILE, main, write_word_order_pairs
from tests.helpers.command import albert


def test_pairs_are_held_out_sentences_with_two_words_swapped(tiny_data: Path, tmp_path: Path) -> None:
    count = write_word_order_pairs(tiny_data, tmp_path / "pairs")
    pairs = read_minimal_pairs(tmp_path / "pairs" / PAIRS_FILE)
    assert len(pairs) == count > 20
    heldout = set(word_order_pairs._iter_sentences(TokenCorpus.open(tiny_data, "heldout")))
    for pair in pairs:
        good = pair.sentence_good.split()
        bad = pair.sentence_bad.split()
        assert pair.sentence_good in heldout and len(good) in word_order_pairs.SENTENCE_WORDS
        first, second = (i for i, (a, b) in enumerate(zip(good, bad, strict=True)) if a != b)
        assert second == first + 1 and (good[first], good[second]) == (bad[second], bad[first])


def test_pairs_are_the_same_every_time_and_limited(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_order_pairs, "MAX_PAIRS", 10)
    for name in ("first", "second"):
        assert main([str(tiny_data), "--out", str(tmp_path / name), "--json"]) == (0, '{"pairs": 10}')
    assert (tmp_path / "first" / PAIRS_FILE).read_bytes() == (tmp_path / "second" / PAIRS_FILE).read_bytes()


def test_text_without_suitable_sentences_is_rejected(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_order_pairs, "SENTENCE_WORDS", range(90, 100))
    with pytest.raises(InputError, match="no sentence of 90 to 99 words"):
        write_word_order_pairs(tiny_data, tmp_path / "pairs")


def test_array_job_without_pairs_scores_generated_ones(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_order_pairs, "MAX_PAIRS", 10)
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "experiments/sharing"\nscales.smoke = { variants = ["all"], tasks = ["minimal-pairs"] }\n'
    )
    out = tmp_path / "out"
    call = ("reproduce", path, "--scale", "smoke", "--out", out, "--data", tiny_data, "--seeds", 1, "--device", "cpu")
    result = json.loads(albert(*call, "--task", "0/1", "--json").out)
    assert not result["skipped"] and list(out.glob("stages/pairs-*/pairs.jsonl"))
    values = result["values"]["all"]
    preference = values["task_minimal-pairs"]["0"]
    assert values["tasks_mean"]["0"] == preference
    assert values["tasks_above_majority"]["0"] == pytest.approx(preference - 0.5)
    assert "word order" in (out / "mine-smoke" / "report.md").read_text(encoding="utf-8")
    commands = [store.read_json(file)["command"] for file in out.glob("stages/pairs-*.json")]
    assert [command.split()[2] for command in commands] == ["albert_cli.experiments.word_order_pairs"]
