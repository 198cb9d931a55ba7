"""RACE and multiple choice: the published files, awkward ones, how they are encoded, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_cli.errors import ConfigError, InputError
from albert_cli.tasks.choice import Choice, ChoiceExample
from albert_cli.tasks.race import RACE as RACE_TASKS
from albert_cli.tasks.registry import find_task
from tests.helpers.letters import letters

RACE = RACE_TASKS["race"]
CHOICE = Choice(name="", title="", metrics=())
AWKWARD = {
    "id": "high7.txt",
    "article": 'He said "no\u2028and left\t.\r\n' + "so it went on. " * 900,
    "questions": ["_ and _ came .", "Why?", 'What is "it'],
    "options": [["A", "B", "C", "D"], ["", "b_c", "c\n", "d\u2028"], ["x"] * 4],
    "answers": ["D", "A", "B"],
}
FOUR = ["a", "b", "c", ""]
PLAIN = {
    "id": "middle1.txt",
    "article": "A short text.",
    "questions": ["What is it?"],
    "options": [["short", "long", "red", "blue"]],
    "answers": ["A"],
}


def write(folder: Path, level: str, name: str, *records: Any, split: str = "dev") -> Path:
    path = folder / split / level / name
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [record if isinstance(record, str) else json.dumps(record, ensure_ascii=False) for record in records]
    path.write_bytes("\n".join(lines).encode())
    return path


def test_read_race_reads_a_file_per_passage(tmp_path: Path) -> None:
    write(tmp_path, "middle", "1.txt", PLAIN)
    write(tmp_path, "high", "10.txt", PLAIN | {"id": "high10.txt"})
    write(tmp_path, "high", "9.txt", json.dumps(AWKWARD, ensure_ascii=False, indent=1))
    examples = RACE.read("dev", str(tmp_path))
    assert [(e.id, e.group, e.label) for e in examples] == [
        ("middle1.txt:0", "middle", 0),
        ("high7.txt:0", "high", 3),
        ("high7.txt:1", "high", 0),
        ("high7.txt:2", "high", 1),
        ("high10.txt:0", "high", 0),
    ]
    first, empty, quote = examples[1:4]
    assert first.passage == AWKWARD["article"] and "\u2028" in first.passage
    assert first.qa_texts == ["A and A came .", "B and B came .", "C and C came .", "D and D came ."]
    assert empty.qa_texts == ["Why?", "Why? b_c", "Why? c", "Why? d"]
    assert quote.qa_texts == ['What is "it x'] * 4
    for level, size in (("middle", 1), ("high", 4)):
        assert len(RACE_TASKS[f"race_{level}"].read("dev", str(tmp_path))) == size


def test_read_race_reads_all_txt_line_by_line(tmp_path: Path) -> None:
    for level in ("middle", "high"):
        write(tmp_path / "RACE", level, "all.txt", PLAIN | {"id": level}, "", AWKWARD | {"id": f"{level}7.txt"})
    assert [e.id for e in RACE.read("dev", str(tmp_path))] == [
        "middle:0", "middle7.txt:0", "middle7.txt:1", "middle7.txt:2",
        "high:0", "high7.txt:0", "high7.txt:1", "high7.txt:2",
    ]  # fmt: skip


def test_read_race_test_answers_may_be_hidden(tmp_path: Path) -> None:
    record = {key: value for key, value in PLAIN.items() if key != "answers"}
    for level in ("middle", "high"):
        write(tmp_path, level, "1.txt", record | {"id": level}, split="test")
        write(tmp_path, level, "1.txt", record | {"id": level})
    assert [e.label for e in RACE.read("test", str(tmp_path))] == [None, None]
    with pytest.raises(InputError, match=r"1\.txt: no answers"):
        RACE.read("dev", str(tmp_path))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "the document: Input should be a valid dictionary"),
        ({"article": "a"}, "questions: Field required"),
        (PLAIN | {"article": None}, "article: Input should be a valid string"),
        (PLAIN | {"options": [["a", "b", "c"]]}, "question 1: 3 options instead of 4"),
        (PLAIN | {"options": [["a", "b", "c", 4]]}, r"options\[0\]\[3\]: Input should be a valid string"),
        (PLAIN | {"options": ["abcd"]}, r"options\[0\]: Input should be a valid list"),
        (PLAIN | {"answers": ["E"]}, "question 1: label 'E' is not one of A, B, C, D"),
        (PLAIN | {"answers": []}, "1 questions, 1 lists of options, 0 answers"),
        (PLAIN | {"questions": [None]}, r"questions\[0\]: Input should be a valid string"),
        ("", "not valid JSON"),
    ],
)
def test_read_race_bad_passage_names_the_file(tmp_path: Path, record: Any, message: str) -> None:
    write(tmp_path, "middle", "1.txt", record)
    write(tmp_path, "high", "1.txt", PLAIN | {"id": "high1.txt"})
    with pytest.raises(InputError, match=rf"middle/1\.txt: .*{message}") as raised:
        RACE.read("dev", str(tmp_path))
    assert raised.value.hint


def test_read_race_same_id_in_two_levels_is_rejected(tmp_path: Path) -> None:
    for level in ("middle", "high"):
        write(tmp_path, level, "1.txt", PLAIN | {"id": "1"})
    with pytest.raises(InputError, match=r"high/1\.txt: the id '1' is already used at .*middle/1\.txt"):
        RACE.read("dev", str(tmp_path))


def test_read_race_bad_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such directory"):
        RACE.read("dev", str(tmp_path / "none"))
    with pytest.raises(InputError, match="holds none of dev/middle, RACE/dev/middle"):
        RACE.read("dev", str(tmp_path))
    write(tmp_path, "high", "1.txt", PLAIN)
    with pytest.raises(InputError) as raised:
        RACE.read("dev", str(tmp_path))
    assert "race_high" in str(raised.value.hint)
    (tmp_path / "dev" / "middle").mkdir()
    with pytest.raises(InputError, match=r"holds no \.txt files"):
        RACE.read("dev", str(tmp_path))
    write(tmp_path, "middle", "1.txt", PLAIN)
    write(tmp_path, "middle", "2.txt", PLAIN)
    (tmp_path / "dev" / "high" / "1.txt").write_text(json.dumps(PLAIN | {"id": "high1.txt"}))
    with pytest.raises(InputError, match=r"2\.txt: the id 'middle1\.txt' is already used at .*1\.txt"):
        RACE.read("dev", str(tmp_path))
    with pytest.raises(ConfigError, match="no task is called 'race_low'"):
        find_task("race_low")


@pytest.mark.usefixtures("datasets_cache")
def test_read_race_hub_level_comes_from_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from albert_cli.tasks import race

    card = ["---", "configs:"]
    for config, levels in (("all", ("high", "middle")), ("high", ("high",))):
        rows = [
            {"example_id": f"{level}1.txt", "article": "x", "answer": "B", "question": f"q{i}?", "options": FOUR}
            for level in levels
            for i in (0, 1)
        ]
        (tmp_path / f"{config}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        card += [f"- config_name: {config}", "  data_files:"]
        card += [f"  - split: {split}\n    path: {config}.jsonl" for split in ("train", "validation")]
    (tmp_path / "README.md").write_text("\n".join([*card, "---", ""]))
    monkeypatch.setattr(race, "RACE_ON_HUB", f"hf:{tmp_path}")
    examples = RACE.read("dev")
    assert [(e.id, e.group, e.label) for e in examples] == [
        (f"{level}1.txt:{i}", level, 1) for level in ("high", "middle") for i in (0, 1)
    ]
    assert examples[0].options == tuple(FOUR)
    assert {e.group for e in RACE_TASKS["race_high"].read("train")} == {"high"}


@pytest.mark.usefixtures("datasets_cache")
@pytest.mark.parametrize("options", [4, [1, 2, 3, 4]])
def test_read_race_hub_bad_options_are_rejected(tmp_path: Path, options: object) -> None:
    row = {"example_id": "high1.txt", "article": "x", "answer": "B", "question": "q?", "options": options}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match=r"train:1: options\[0\]"):
        RACE.read("train", f"hf:{tmp_path}")


@pytest.mark.usefixtures("datasets_cache")
def test_read_race_hub_hidden_answers_are_not_scored(tmp_path: Path) -> None:
    row = {"example_id": "high1.txt", "article": "x", "answer": "", "question": "q?", "options": FOUR}
    (tmp_path / "test.jsonl").write_text(json.dumps(row) + "\n")
    (example,) = RACE.read("test", f"hf:{tmp_path}")
    assert example.label is None
    with pytest.raises(InputError, match="test:1"):
        RACE.for_scoring("test").read("test", f"hf:{tmp_path}")


def test_qa_texts_long_blank_is_filled_once() -> None:
    result = ChoiceExample("0", "", "She ____ it, \\1 _ .", ("saw", "\\g<0>"), 0).qa_texts
    assert result == ["She saw it, \\1 saw .", "She \\g<0> it, \\1 \\g<0> ."]


# ---------------------------------------------------------------- encoding


def plain(example: ChoiceExample, choice: int, limit: int) -> tuple[list[int], list[int]]:
    """The rule as it is written: the last 128 of question and option, then the passage from its beginning."""
    passage, qa = letters().encode_batch([example.passage, example.qa_texts[choice]])
    qa = qa[-min(128, (limit - 2) // 2) :]
    passage = passage[: limit - 3 - len(qa)]
    ids = [2, *passage, 3, *qa, 3]
    return ids, [0] * (len(passage) + 2) + [1] * (len(qa) + 1)


OPTIONS = st.lists(st.text("xy", max_size=90), min_size=3, max_size=3)
QUESTIONS = st.lists(
    st.tuples(st.text("ab_ ", max_size=90), st.text("pq", max_size=90), OPTIONS), min_size=1, max_size=3
)


@settings(max_examples=40)
@given(questions=QUESTIONS, limit=st.integers(5, 300))
def test_encode_race_follows_the_documented_rule(questions: list[tuple[str, str, list[str]]], limit: int) -> None:
    examples = [ChoiceExample(str(i), p, q, tuple(o), 0) for i, (q, p, o) in enumerate(questions)]
    features = CHOICE.encode(examples, letters(), limit)
    index = np.arange(len(examples))[::-1].copy()
    packed, labels = features.batch(index)
    assert labels is not None and labels.tolist() == [0] * len(examples)
    expected = [plain(examples[i], c, limit) for i in index for c in range(3)]
    for (ids, segments), start, stop in zip(expected, packed.offsets[:-1], packed.offsets[1:], strict=True):
        assert packed.ids[start:stop].tolist() == ids and len(ids) <= limit
        assert packed.segment_ids[start:stop].tolist() == segments
        assert packed.position_ids[start:stop].tolist() == list(range(len(ids)))
    seen = np.concatenate(list(features.eval_batches(500)))
    assert sorted(seen.tolist()) == list(range(len(examples)))


def test_encode_race_cut_question_counts_once() -> None:
    examples = [
        ChoiceExample("0", "p" * 600, "q?", ("a", "b"), 1),
        ChoiceExample("1", "p", "q" * 200, ("a", "b"), 0),
        ChoiceExample("2", "p", "q", ("a", "b"), None),
    ]
    features = CHOICE.encode(examples, letters(), 512)
    assert (len(features), features.truncated, features.labels) == (3, 2, None)
    assert features.lengths.tolist() == [512, 132, 7]


@pytest.mark.parametrize(
    ("question", "qa_text"),
    [
        ("She felt _ .", "She felt A1 ."),
        ("She felt ____.", "She felt A1."),
        ("_ and _ came.", "A1 and A1 came."),
        ("She felt_.", "She feltA1."),
        ("He sold two _s.", "He sold two A1s."),
        ("她觉得_高兴", "她觉得A1高兴"),
        ("Is snake_case or a__b a name?", "Is snake_case or a__b a name? A1"),
        ("The name snake_case is _ .", "The name snake_case is A1 ."),
    ],
)
def test_choice_qa_texts_replace_blanks_but_no_words(question: str, qa_text: str) -> None:
    assert ChoiceExample("q", "", question, ("A1", "B1"), None).qa_texts[0] == qa_text
