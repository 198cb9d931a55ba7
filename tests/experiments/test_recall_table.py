"""Tests of `experiments.recall_table`, which writes the table of the experiment `long-inputs`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from albert_cli.errors import InputError
from albert_cli.experiments import recall_table
from albert_cli.experiments.recall_table import KEY_WORDS, WORDS_BEFORE_KEY, main, write_recall_table


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Eighty documents of sixty short sentences."""
    sentences = [f"Sentence {number} of the story goes on for eleven words in all." for number in range(4800)]
    documents = [" ".join(sentences[start : start + 60]) for start in range(0, 4800, 60)]
    path = tmp_path / "story.txt"
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path


def _rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_write_recall_table_states_each_key_word_once_beyond_512(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall_table, "EXAMPLES", {"train": 40, "dev": 20})
    for folder in ("first", "second"):
        assert write_recall_table(str(source), tmp_path / folder) == {"train": 40, "dev": 20}
    texts: dict[str, set[str]] = {}
    for split, count in (("train", 40), ("dev", 20)):
        file = tmp_path / "first" / f"{split}.jsonl"
        assert file.read_bytes() == (tmp_path / "second" / f"{split}.jsonl").read_bytes()
        rows = _rows(file)
        assert [row["id"] for row in rows] == [f"{split}-{number}" for number in range(count)]
        assert {row["label"] for row in rows} == set(KEY_WORDS)
        for row in rows:
            assert row["text"].endswith(" What is the key word?")
            words = row["text"].split()
            positions = [i for i, word in enumerate(words) if word.strip(".") in KEY_WORDS]
            assert len(positions) == 1 and positions[0] > WORDS_BEFORE_KEY[0] >= 512
            assert words[positions[0]].strip(".") == row["label"]
        texts[split] = {row["text"] for row in rows}
    assert not texts["train"] & texts["dev"]


def test_main_prints_the_number_of_examples(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall_table, "EXAMPLES", {"train": 3, "dev": 2})
    code, printed = main([str(source), "--out", str(tmp_path / "table"), "--json"])
    assert code == 0 and json.loads(printed) == {"train": 3, "dev": 2}


@pytest.mark.parametrize(
    ("text", "message"), [("-", "standard input"), ("-@2", "standard input"), ("A few words.\n", "too few")]
)
def test_write_recall_table_rejects_unusable_text(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        write_recall_table(text if text.startswith("-") else str(path), tmp_path / "table")
