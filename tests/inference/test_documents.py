"""Inputs in the layout of a task's own data: GLUE's test files, RACE's passages, CoNLL's columns."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from albert_cli.errors import InputError
from albert_cli.inference.documents import read_document
from albert_cli.inference.inputs import InputReader
from albert_cli.tasks.choice import Choice, ChoiceExample
from albert_cli.tasks.registry import TASKS
from albert_cli.tasks.token_classification import TokenClassification

TAGS = ("O", "B-PER", "I-PER")
GLUE_TEST_FILES = {
    "cola": ("CoLA/test.tsv", "index\tsentence", "0\tIt rained."),
    "sst2": ("SST-2/test.tsv", "index\tsentence", '0\tit \'s "fine"'),
    "mrpc": ("MRPC/test.tsv", "index\t#1 ID\t#2 ID\t#1 String\t#2 String", "0\t11\t12\tIt rained.\tRain."),
    "stsb": (
        "STS-B/test.tsv",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
        "0\tg\tf\ty\to\ts\ts\tIt rained.\tRain.",
    ),
    "qqp": ("QQP/test.tsv", "id\tquestion1\tquestion2", "0\tDid it rain?\tRain?"),
    "mnli": (
        "MNLI/test_matched.tsv",
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse"
        "\tsentence2_parse\tsentence1\tsentence2",
        "0\t31193\t31193n\tg\t( It )\t( R )\t(ROOT)\t(ROOT)\tIt rained.\tRain.",
    ),
    "qnli": ("QNLI/test.tsv", "index\tquestion\tsentence", "0\tDid it rain?\tIt rained."),
    "rte": ("RTE/test.tsv", "index\tsentence1\tsentence2", "0\tIt rained.\tRain."),
    "wnli": ("WNLI/test.tsv", "index\tsentence1\tsentence2", "0\tIt rained.\tRain."),
    "ax": ("diagnostic/diagnostic.tsv", "index\tsentence1\tsentence2", "0\tIt rained.\tRain."),
}


def predicted_inputs(task: str, path: Path) -> list[Any]:
    reader = InputReader(TASKS[task])
    return [row.example for chunk in reader.read_chunks(str(path)) for row in chunk]


@pytest.mark.parametrize("task", GLUE_TEST_FILES)
def test_predict_reads_the_test_file_of_glue(tmp_path: Path, task: str) -> None:
    name, header, row = GLUE_TEST_FILES[task]
    path = tmp_path / name
    path.parent.mkdir()
    path.write_text(f"{header}\n{row}\n")
    assert predicted_inputs(task, path) == TASKS[task].read("test", str(tmp_path))


@pytest.mark.parametrize("task", ["cola", "sst2", "mrpc", "stsb", "qnli", "rte", "wnli", "ax"])
def test_predict_reads_published_test_files(shared_data: Path, task: str) -> None:
    path = shared_data / "glue" / GLUE_TEST_FILES[task][0]
    if not path.is_file():
        pytest.skip(f"no {path}")
    examples = predicted_inputs(task, path)
    assert len(examples) > 100 and examples == TASKS[task].read("test", str(shared_data / "glue"))


def passage(name: str, **changes: Any) -> str:
    record = {
        "article": "It rained.",
        "questions": ["Did it?", "It _ ."],
        "options": [["yes", "no", "maybe", "never"]] * 2,
        "answers": ["A", "C"],
        "id": name,
    }
    return json.dumps(record | changes)


CHOICE: Any = Choice(name="", title="predict", metrics=(), labels=tuple("ABCDEFGH"))


def test_read_document_reads_race(tmp_path: Path) -> None:
    for level in ("middle", "high"):
        (tmp_path / "test" / level).mkdir(parents=True)
        for number in (1, 2):
            (tmp_path / "test" / level / f"{number}.txt").write_text(passage(f"{level}{number}.txt"))
    (tmp_path / "all.txt").write_text(passage("a") + "\n" + passage("b", answers=None) + "\n")
    (tmp_path / "pretty.txt").write_text(json.dumps(json.loads(passage("p")), indent=1))
    sizes = {"test": 8, "test/high": 4, "test/high/1.txt": 2, "all.txt": 4, "pretty.txt": 2}
    for name, size in sizes.items():
        examples = read_document(CHOICE, tmp_path / name)
        assert examples is not None and len(examples) == size, name
    labeled = read_document(CHOICE, tmp_path / "test" / "high")
    assert labeled is not None and [e.label for e in labeled] == [0, 2, 0, 2]
    assert labeled[0] == ChoiceExample("high1.txt:0", "It rained.", "Did it?", ("yes", "no", "maybe", "never"), 0)
    hidden = read_document(CHOICE, tmp_path / "all.txt")
    assert hidden is not None and [e.label for e in hidden] == [0, 2, None, None]


def test_read_document_other_text_is_no_race(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text('{"text": "a", "question": "b", "choices": ["c", "d"]}\n')
    (tmp_path / "empty.txt").write_text("")
    assert read_document(CHOICE, tmp_path / "lines.txt") is None
    assert read_document(CHOICE, tmp_path / "empty.txt") is None and read_document(CHOICE, Path("-")) is None
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"folder: holds no \.txt files"):
        read_document(CHOICE, tmp_path / "folder")


def test_read_document_reads_the_words_of_conll(tmp_path: Path) -> None:
    task: Any = TokenClassification(name="", title="predict", metrics=(), labels=TAGS)
    (tmp_path / "a.conll").write_text("-DOCSTART- -X- O\n\nAda B-PER\nmet O\n\nBo X-ODD\n")
    (tmp_path / "words.bio").write_text("Ada\nmet\n\nBo\n")
    for name in ("a.conll", "words.bio"):
        examples = read_document(task, tmp_path / name)
        assert examples is not None and [(e.text, e.tags) for e in examples] == [("Ada met", None), ("Bo", None)]
    assert read_document(task, tmp_path / "a.txt") is None


@pytest.mark.parametrize("name", ["a.txt", "a.TSV", "eng.testb"])
def test_read_document_reads_the_words_of_tagged_columns(tmp_path: Path, name: str) -> None:
    task: Any = TokenClassification(name="", title="predict", metrics=(), labels=TAGS)
    (tmp_path / name).write_text("-DOCSTART-\t-X-\tO\n\nAda\tNNP\tB-PER\nmet\tVBD\tO\n")
    examples = read_document(task, tmp_path / name)
    assert examples is not None and [(e.text, e.tags) for e in examples] == [("Ada met", None)]
    (tmp_path / name).write_text("text\ttopic\nHe has type\tO\n")
    assert read_document(task, tmp_path / name) is None


@pytest.mark.parametrize("name", ["a.conll.gz", "eng.testb.gz"])
def test_read_document_reads_compressed_columns(tmp_path: Path, name: str) -> None:
    task: Any = TokenClassification(name="", title="predict", metrics=(), labels=TAGS)
    (tmp_path / name).write_bytes(gzip.compress(b"Ada B-PER\nmet O\n"))
    examples = read_document(task, tmp_path / name)
    assert examples is not None and [(e.text, e.tags) for e in examples] == [("Ada met", None)]
