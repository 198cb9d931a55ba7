"""SQuAD's files: the published layout, one's own, and the awkward ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from albert_cli.errors import InputError
from albert_cli.tasks.squad.data import NOT_FOUND, Answer, Question, read_squad_file
from albert_cli.tasks.squad.task import SQUAD

CONTEXT = "Ada met Bo. Later Bo met\u2028Ada in Paris."


def qa(identifier: str = "q", text: str = "Bo", start: object = 8, **further: Any) -> dict[str, Any]:
    return {"id": identifier, "question": "Who?", "answers": [{"text": text, "answer_start": start}], **further}


def file(folder: Path, *qas: object, name: str = "dev.json", context: object = CONTEXT, titles: int = 1) -> Path:
    path = folder / name
    articles = [{"title": f"t{i}", "paragraphs": [{"context": context, "qas": qas}]} for i in range(titles)]
    path.write_text(json.dumps({"version": "own", "data": articles}), encoding="utf-8")
    return path


def test_read_squad_file_returns_questions_as_written(tmp_path: Path) -> None:
    path = file(tmp_path, qa(), {"id": 7, "question": "When?", "answers": [], "is_impossible": True})
    assert read_squad_file(path, "2.0") == [
        Question("q", "Who?", CONTEXT, (Answer("Bo", 8),), "t0"),
        Question("7", "When?", CONTEXT, (), "t0"),
    ]


@pytest.mark.parametrize(
    ("start", "expected"),
    [(9, 8), (0, 8), (12, 8), (13, 8), (14, 18), (17, 18), (19, 18), (10**9, 18), (-5, 8), (-1, 8), (8, 8), (18, 18)],
)
def test_read_squad_file_moves_stray_answer(tmp_path: Path, start: int, expected: int) -> None:
    assert read_squad_file(file(tmp_path, qa(start=start)))[0].answers == (Answer("Bo", expected),)


def test_read_squad_counts_moved_and_missing_answers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, qa("a", start=9), qa("b"), qa("c", "Rome", 3), name="train.json")
    file(tmp_path, qa())
    assert [q.id for q in SQUAD["squad1"].read("train", str(tmp_path))] == ["a", "b"]
    printed = capfd.readouterr().err
    assert "1 answer not at its answer_start; using the nearest occurrence" in printed
    assert "1 answer not found in the context, left out" in printed
    path.rename(tmp_path / "dev.json")  # to be scored, an answer's text is enough
    assert SQUAD["squad1"].read("dev", str(tmp_path))[2].answers == (Answer("Rome", NOT_FOUND),)


def test_read_squad_train_without_answers_is_rejected(tmp_path: Path) -> None:
    file(tmp_path, qa("a", "Rome", 3), name="train.json")
    file(tmp_path, qa())
    with pytest.raises(InputError, match="no training question has an answer in its context"):
        SQUAD["squad1"].read("train", str(tmp_path))


AWKWARD: list[tuple[object, str]] = [
    ({"data": 3}, r"dev\.json: data: Input should be a valid list"),
    ([1], r"dev\.json: the document: Input should be a valid dictionary"),
    ({"data": []}, r"dev\.json: holds no questions"),
    ({"data": [{"title": "t"}]}, r"dev\.json: data\[0\]\.paragraphs: Field required"),
    ({"data": [7]}, r"dev\.json: data\[0\]: Input should be a valid dictionary"),
    ({"data": [{"paragraphs": [{"qas": []}]}]}, r"data\[0\]\.paragraphs\[0\]\.context: Field required"),
    ({"data": [{"paragraphs": [{"context": " \n", "qas": []}]}]}, r"paragraphs\[0\]\.context: .*it is empty"),
    ({"data": [{"paragraphs": [{"context": "x", "qas": {}}]}]}, r"paragraphs\[0\]\.qas: Input should be a valid list"),
    ({"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "1"}]}]}]}, r"qas\[0\]\.question: Field required"),
]
AWKWARD_QUESTIONS: list[tuple[list[object], str]] = [
    ([qa(), qa()], r"qas\[1\]: the id 'q' is already used at .*data\[0\]\.paragraphs\[0\]\.qas\[0\]"),
    ([{"question": "Who?", "answers": []}], r"qas\[0\]\.id: Field required"),
    ([qa(is_impossible=True)], r"qas\[0\] \(id q\): is_impossible is true, but it has answers"),
    ([{"id": "q", "question": "Who?", "answers": [], "is_impossible": False}], r"\(id q\): has no answer, but"),
    ([qa(answers={"text": ["Bo"], "answer_start": []})], r"qas\[0\]\.answers: .*shorter"),
    ([qa(answers={"text": ["Bo"]})], r"qas\[0\]\.answers: .*needs two lists, text and answer_start"),
    ([qa(answers={"text": ["Bo"], "answer_start": 8})], r"qas\[0\]\.answers: .*needs two lists"),
    ([qa(answers="Bo")], r"qas\[0\]\.answers: Input should be a valid list"),
    ([qa(text=" ")], r"qas\[0\]\.answers\[0\]\.text: .*it is empty"),
    ([qa(start="8")], r"answers\[0\]\.answer_start: Input should be a valid integer"),
    ([qa(answers=[["Bo", 8]])], r"qas\[0\]\.answers\[0\]: Input should be a valid dictionary"),
]


@pytest.mark.parametrize(("value", "message"), AWKWARD)
def test_read_squad_file_other_layout_names_the_path(tmp_path: Path, value: object, message: str) -> None:
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(InputError, match=message) as raised:
        read_squad_file(path, "2.0")
    assert raised.value.hint


@pytest.mark.parametrize(("qas", "message"), AWKWARD_QUESTIONS)
def test_read_squad_bad_question_names_path_and_id(tmp_path: Path, qas: list[object], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        read_squad_file(file(tmp_path, *qas), "2.0")
    assert raised.value.hint


def test_read_squad_file_broken_json_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "dev.json"
    path.write_bytes(b'{"data":\n [}')
    with pytest.raises(InputError, match=r"dev\.json:2: not valid JSON"):
        read_squad_file(path)
    path.write_bytes(b'{"data":\n "\xff"}')
    with pytest.raises(InputError, match=r"dev\.json:2: not valid UTF-8"):
        read_squad_file(path)
    path.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(InputError, match="nested too deeply"):
        read_squad_file(path)
    with pytest.raises(InputError, match="no such file"):
        read_squad_file(tmp_path / "none.json")


def test_read_squad1_unanswerable_is_rejected(tmp_path: Path) -> None:
    file(tmp_path, {"id": "q", "question": "Who?", "answers": [], "is_impossible": True})
    with pytest.raises(InputError, match="has no answer") as raised:
        SQUAD["squad1"].read("dev", str(tmp_path))
    assert "squad2" in str(raised.value.hint)
    assert SQUAD["squad2"].read("dev", str(tmp_path))[0].answers == ()


def test_read_squad_published_name_has_precedence(tmp_path: Path) -> None:
    (tmp_path / "squad").mkdir()
    file(tmp_path / "squad", qa("published"), name="dev-v1.1.json")
    file(tmp_path, qa("own"))
    assert [q.id for q in SQUAD["squad1"].read("dev", str(tmp_path))] == ["published"]
    assert [q.id for q in SQUAD["squad2"].read("dev", str(tmp_path))] == ["own"]


@pytest.mark.parametrize("prepare", [lambda p: p, lambda p: p.parent])
def test_read_squad_without_dev_holds_out_articles(tmp_path: Path, prepare: Callable[[Path], Path]) -> None:
    articles = [
        {"title": f"t{i}", "paragraphs": [{"context": CONTEXT, "qas": [qa(f"{i}-{j}") for j in range(3)]}]}
        for i in range(20)
    ]
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"data": articles}), encoding="utf-8")
    train, dev = (SQUAD["squad1"].read(split, str(prepare(path))) for split in ("train", "dev"))
    assert (len(train), len(dev)) == (54, 6)
    assert not {q.title for q in train} & {q.title for q in dev}


def test_read_squad_names_of_files_in_any_case(tmp_path: Path) -> None:
    for name in ("Train-v1.1.json", "Dev-v1.1.json"):
        file(tmp_path, qa("a"), qa("b"), name=name)
    assert [[q.id for q in SQUAD["squad1"].read(split, str(tmp_path))] for split in ("train", "dev")] == [
        ["a", "b"]
    ] * 2


def test_read_squad_missing_split_is_reported(tmp_path: Path) -> None:
    file(tmp_path, qa())
    with pytest.raises(InputError, match=r"holds none of train-v1\.1\.json, train\.json, train\.jsonl, "):
        SQUAD["squad1"].read("train", str(tmp_path))
    with pytest.raises(InputError, match="no such directory"):
        SQUAD["squad1"].read("dev", str(tmp_path / "nowhere"))
    single = file(tmp_path, qa(), name="only.json")
    with pytest.raises(InputError, match="a single context cannot be split"):
        SQUAD["squad1"].read("dev", str(single))


@pytest.mark.usefixtures("datasets_cache")
@pytest.mark.parametrize("is_list", [False, True])
def test_read_squad_hub_columns(tmp_path: Path, is_list: bool) -> None:
    """As `squad` and `squad_v2` have them: texts beside places, or (by another reader) one object an answer."""
    raw: list[Any] = [{"text": ["Bo"], "answer_start": [8]}, {"text": [], "answer_start": []}]
    if is_list:
        raw = [[{"text": "Bo", "answer_start": 8}], []]
    rows = [
        {"id": str(i), "title": "t", "context": CONTEXT, "question": "Who?", "answers": answers}
        for i, answers in enumerate(raw)
    ]
    card = ["---", "configs:", "- config_name: default", "  data_files:"]
    for split, held in (("train", rows[:1]), ("validation", rows)):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held), encoding="utf-8")
        card.append(f"  - split: {split}\n    path: {split}.jsonl")
    (tmp_path / "README.md").write_text("\n".join([*card, "---", ""]), encoding="utf-8")
    answered = Question("0", "Who?", CONTEXT, (Answer("Bo", 8),), "t")
    squad1, squad2 = SQUAD["squad1"], SQUAD["squad2"]
    assert squad2.read("dev", f"hf:{tmp_path}") == [answered, Question("1", "Who?", CONTEXT, (), "t")]
    assert squad1.read("train", f"hf:{tmp_path}") == [answered]
    with pytest.raises(InputError, match=r"validation:2 \(id 1\): has no answer"):
        squad1.read("dev", f"hf:{tmp_path}")


@pytest.mark.usefixtures("datasets_cache")
def test_read_squad_hub_answers_not_json_are_rejected(tmp_path: Path) -> None:
    row = {"id": "0", "title": "t", "context": CONTEXT, "question": "Who?", "answers": "Bo"}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"train:1: not valid JSON"):
        SQUAD["squad1"].read("train", f"hf:{tmp_path}")


@pytest.mark.usefixtures("datasets_cache")
def test_read_squad_hub_repeated_id_is_rejected(tmp_path: Path) -> None:
    row = {"id": "0", "title": "t", "context": CONTEXT, "question": "Who?"}
    row["answers"] = json.dumps({"text": ["Bo"], "answer_start": [8]})
    (tmp_path / "train.jsonl").write_text(2 * (json.dumps(row) + "\n"), encoding="utf-8")
    with pytest.raises(InputError, match=r"train:2: the id '0' is already used"):
        SQUAD["squad1"].read("train", f"hf:{tmp_path}")


def test_read_squad_published_files(shared_data: Path) -> None:
    for task, split, questions, unanswerable in (("squad1", "dev", 10_570, 0), ("squad2", "dev", 11_873, 5_945)):
        result = SQUAD[task].read(split, str(shared_data))
        assert len(result) == questions
        assert sum(not q.answers for q in result) == unanswerable
        assert all(q.context.startswith(a.text, a.start) for q in result for a in q.answers)


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (["KorQuAD_v1.0_train.json"], "rename one of KorQuAD_v1.0_train.json to train.json"),
        (["training.jsonl", "dev.json"], "rename one of training.jsonl to train.json"),
        (["train-v2.0.json", "dev-v2.0.json"], "use the task squad2"),
        (["train-v2.0.json", "dev-v1.1.json"], "rename one of train-v2.0.json to train.json"),
        (["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"], "combine the parts of train"),
        (["dev.json"], "add train.json"),
        (["Dev-v1.1.json"], "add train.json"),
        (["Train-v2.0.json", "Dev-v2.0.json"], "use the task squad2"),
        ([], "omit --data to read hf:rajpurkar/squad"),
    ],
)
def test_read_squad_missing_file_hint_fits_the_folder(tmp_path: Path, names: list[str], hint: str) -> None:
    for name in names:
        (tmp_path / name).write_text("")
    with pytest.raises(InputError) as raised:
        SQUAD["squad1"].read("train", str(tmp_path))
    assert str(raised.value.hint).startswith(hint)
