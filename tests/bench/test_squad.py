"""The bench of SQuAD's windows: what comes back from letters and from pieces, by reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from albert_cli.text.vocabulary import Vocabulary
from tests.command import albert


def file(path: Path, context: str, *answers: tuple[str, int]) -> Path:
    """A question an answer, and one without any."""
    given = [[{"text": t, "answer_start": s}] for t, s in answers]
    qas = [{"id": i, "question": "ba?", "answers": a} for i, a in enumerate([*given, []])]
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas}]}]}))
    return path


@pytest.fixture(scope="module")
def word(tiny_vocabulary: Path) -> str:
    """A word that is one piece of four letters or more."""
    vocabulary = Vocabulary.load(tiny_vocabulary)
    words = (piece[1:] for piece in vocabulary.pieces if piece[0] == "▁" and len(piece) > 4)
    return next(word for word in words if len(vocabulary.encode(word)) == 1)


def test_every_way_to_come_back_is_counted(tiny_vocabulary: Path, word: str, tmp_path: Path) -> None:
    context = f"{word} e\u0301 \u0302 {word}"
    mark, lone, end = (context.index(c) for c in ("\u0301", "\u0302", f" {word}"))
    answers = [(word, 0), (word[1:], 1), (word[:-1], 0), (word[1:-1], 1), (f" {word}", end)]
    answers += [("e", mark - 1), ("\u0301", mark), ("\u0302", lone), (f"\u0302 {word}", lone), ("Rome", 0)]
    call = ["bench", "squad", file(tmp_path / "q.json", context, *answers), "--vocab", tiny_vocabulary]
    said = json.loads(albert(*call, "--json").out)
    assert said["through_cleaning"] == {
        "as written": 5, "ends inside a letter": 1, "begins inside a letter": 1,
        "nothing is left by cleaning": 1, "cleaning drops its first or last character": 1,
    }  # fmt: skip
    pieces = said["through_pieces"]
    assert (pieces["as written"], pieces["begins and ends inside a piece"]) == (2, 1)
    assert (pieces["begins inside a piece"], pieces["ends inside a piece"]) == (2, 2)
    assert (said["questions"], said["with_answer"], said["answers"], said["not_in_context"]) == (11, 10, 10, 1)
    assert said["questions_per_cpu_second"] > 0
    shown = albert(*call).out
    assert "through pieces: as written" in shown and "22.22%" in shown
    assert "not in its context" in shown


def test_windows_and_the_answers_that_none_holds(tiny_vocabulary: Path, word: str, tmp_path: Path) -> None:
    context = " ".join([word] * 60)
    answers = [(context, 0), (word, 0), (word, len(word) + 1)]
    call = ["bench", "squad", file(tmp_path / "q.json", context, *answers), "--vocab", tiny_vocabulary, "--json"]
    short = ["-s", "data.max_seq_length=40", "-s", "span.max_query_length=4", "-s", "span.doc_stride=20"]
    said = json.loads(albert(*call, *short).out)
    assert (said["answer_in_a_window"], said["with_answer"], said["windows"] % 4) == (2, 3, 0)
    assert said["windows"] > said["questions"] == 4
    assert json.loads(albert(*call).out)["answer_in_a_window"] == 3
    refused = albert("bench", "squad", tmp_path / "none.json", "--vocab", tiny_vocabulary, expect=3)
    assert "none.json: no such file" in refused.err
