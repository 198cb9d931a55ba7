from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.errors import InputError
from albert_cli.text.work_units import split_sources
from tests.helpers.text_files import read_texts


def test_squad_and_race_passages_are_documents(tmp_path: Path) -> None:
    squad = tmp_path / "dev-v1.1.json"
    article = {"title": "T", "paragraphs": [{"context": "One.", "qas": []}, {"context": "Two.", "qas": []}]}
    squad.write_text(json.dumps({"version": "1.1", "data": [article, article]}))
    race = tmp_path / "race" / "dev" / "high"
    race.mkdir(parents=True)
    (race / "2.txt").write_text(json.dumps({"article": "A passage.\nIts end.", "questions": []}))
    (race / "10.txt").write_text(json.dumps({"article": "Another."}))
    assert read_texts(f"squad:{squad}") == ["One.\nTwo."] * 2
    assert read_texts(f"race:{tmp_path / 'race'}") == ["Another.", "A passage.\nIts end."]
    sources = (f"race:{tmp_path / 'race'}", f"{tmp_path / 'race'}")
    as_race, as_text = (split_sources([source])[0].record for source in sources)
    # A vocabulary that was built from the passages must not count as one that was built from the raw JSON.
    assert as_race != as_text
    (race / "3.txt").write_text('{"text": "no article"}')
    with pytest.raises(InputError, match=r"3\.txt: not in RACE's format \(no key 'article'\)"):
        read_texts(f"race:{tmp_path / 'race'}")
    squad.write_text('{"data": [{"context": "x"}]}')
    with pytest.raises(InputError, match="not in SQuAD's format"):
        read_texts(f"squad:{squad}")


def squad_file(path: Path, context: str, *questions: tuple[str, str, int]) -> Path:
    """Write a file in SQuAD's layout with (question, answer, its position) about one context."""
    records = [
        {"id": question, "question": question, "answers": [{"text": answer, "answer_start": start}]}
        for question, answer, start in questions
    ]
    path.write_text(json.dumps({"data": [{"title": "T", "paragraphs": [{"context": context, "qas": records}]}]}))
    return path


def test_squad_answers_pair_questions_with_sentences(tmp_path: Path) -> None:
    context = "It rained in  Rome.\nDr. Ash left at 5 p.m. on Monday. He took two cats, Rome said."
    questions = [("Where did\nit rain?", "Rome"), ("When?", "5 p.m."), ("What?", "Monday. He took")]
    wanted = [(question, answer, context.index(answer)) for question, answer in questions]
    wanted.append(("Who said so?", "Rome", context.rindex("Rome")))
    wanted.append(("Wrong position?", "Rome", 0))  # left out: the context has no "Rome" at 0
    path = squad_file(tmp_path / "train.json", context, *wanted)
    assert read_texts(f"squad-answers:{path}") == [
        "Where did it rain?\nIt rained in Rome.",
        "When?\nDr. Ash left at 5 p.m. on Monday.",
        "What?\nDr. Ash left at 5 p.m. on Monday. He took two cats, Rome said.",
        "Who said so?\nHe took two cats, Rome said.",
    ]
    # Two sources may read the same file: here 4 answers and 1 article.
    assert len(read_texts(f"squad-answers:{path}", f"squad:{path}")) == 5


def test_long_squad_article_is_skipped_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    articles = [{"paragraphs": [{"context": context}]} for context in ("One.", "x" * 2000, "Two.")]
    path.write_text(json.dumps({"data": articles}))
    assert read_texts(f"squad:{path}", max_line=1024, on_long_line="skip") == ["One.", "Two."]
    with pytest.raises(InputError, match=r"train\.json: record 2: longer than"):
        read_texts(f"squad:{path}", max_line=1024)


def test_joined_lines_leave_squad_contexts_apart(tmp_path: Path) -> None:
    contexts = ("It rained\nin Rome. It was\ncold.", "Two.")
    question = {"question": "Where?", "answers": [{"text": "Rome", "answer_start": contexts[0].index("Rome")}]}
    paragraphs = [{"context": context, "qas": [question]} for context in contexts]
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    assert read_texts(f"squad:{path}", join_lines=True) == ["It rained in Rome. It was cold.\nTwo."]
    assert read_texts(f"squad-answers:{path}", join_lines=True) == ["Where?\nIt rained in Rome."]


@given(st.lists(st.text("ab .\n\xa0?", min_size=1, max_size=30), min_size=1, max_size=6), st.data())
def test_squad_answers_sentence_contains_the_answer(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], draw: st.DataObject
) -> None:
    context = ". ".join(parts) + "z"
    start = draw.draw(st.integers(0, len(context) - 1))
    answer = context[start : draw.draw(st.integers(start + 1, len(context)))]
    path = squad_file(
        tmp_path_factory.mktemp("squad") / "train.json", context, ("Q?", answer, start), ("Z?", "z", len(context) - 1)
    )
    *documents, last = read_texts(f"squad-answers:{path}")
    assert last.startswith("Z?\n")
    assert last.endswith("z")
    assert len(documents) == (1 if answer.strip() else 0)  # a blank answer is left out
    for text in documents:
        assert "".join(answer.split()) in "".join(text.removeprefix("Q?\n").split())


@pytest.mark.parametrize(
    ("question", "printed"),
    [
        ({"answers": [{"text": "x", "answer_start": 0}]}, "no key 'question'"),
        ({"question": "q", "answers": [{"text": "x"}]}, "no key 'answer_start'"),
        ({"question": "q", "answers": [{"text": "x", "answer_start": "0"}]}, "not in SQuAD's format"),
        ("q", "not in SQuAD's format"),
        ({"question": "q", "is_impossible": True}, "no question has an answer"),
    ],
)
def test_squad_answers_file_without_answers_is_rejected(tmp_path: Path, question: object, printed: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "x", "qas": [question]}]}]}))
    with pytest.raises(InputError, match=printed):
        read_texts(f"squad-answers:{path}")
