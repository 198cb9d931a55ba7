"""Predictions of tables: their columns are found by name and kept, in every format."""

from __future__ import annotations

import csv
import datetime
import io
import json
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from albert_cli.errors import ConfigError, InputError
from albert_cli.inference.outputs import escape_formula, merge_columns, open_prediction_writer
from albert_cli.inference.predict import predict_file
from tests.helpers.approximate import approximate
from tests.helpers.command import albert
from tests.helpers.task_runs import QUICK, finetune, prepare

Tuned = Callable[[str], Path]
ROWS = [{"key": "=1+1", "review": "bade figo"}, {"key": "b", "review": "luma, wi"}]


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Path:
    """A model of a table whose texts are in a column with an unusual name."""
    folder = tmp_path_factory.mktemp("reviews")
    rows = "".join(f"bade figo {i},{'good' if i % 2 else 'bad'}\n" for i in range(12))
    for split in ("train", "dev"):
        (folder / f"{split}.csv").write_text("review,label\n" + rows)
    finetune(prepare("table", str(encoder), str(folder), (*QUICK, "table.text=review"), "cpu"), folder / "model", 0)
    return folder / "model"


def write_input(path: Path, rows: list[dict[str, str]]) -> Path:
    """Write rows in the format of the path's ending."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif suffix in (".jsonl", ".ndjson"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        stream = io.StringIO()
        writer = csv.DictWriter(stream, list(rows[0]), delimiter="," if suffix == ".csv" else "\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        path.write_text(stream.getvalue(), encoding="utf-8")
    return path


def read_output(path: Path) -> list[dict[str, Any]]:
    """Read the rows of an output."""
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream, delimiter="," if path.suffix == ".csv" else "\t"))


@pytest.mark.parametrize("source", ["in.csv", "in.tsv", "in.CSV", "in.jsonl", "in.NDJSON", "in.parquet"])
@pytest.mark.parametrize("target", ["out.csv", "out.tsv", "out.parquet", "out.jsonl"])
def test_predict_keeps_columns_in_every_format(reviews: Path, tmp_path: Path, source: str, target: str) -> None:
    path = write_input(tmp_path / source, ROWS)
    predict_file(str(reviews), str(path), tmp_path / target, "cpu")
    rows = read_output(tmp_path / target)
    assert [row["review"] for row in rows] == [row["review"] for row in ROWS]
    is_delimited = target in ("out.csv", "out.tsv")
    assert [row["key"] for row in rows] == (["'=1+1", "b"] if is_delimited else ["=1+1", "b"])
    for row in rows:
        probabilities = row["probabilities"] if target == "out.jsonl" else row
        names = ("bad", "good") if target == "out.jsonl" else ("probability_bad", "probability_good")
        values = [float(probabilities[name]) for name in names]
        assert sum(values) == pytest.approx(1, abs=1e-4) and row["prediction"] in ("bad", "good")
        assert values[row["prediction"] == "good"] == max(values)


def test_predict_formats_agree_with_plain_lines(reviews: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("bade figo\nluma, wi\n")
    predict_file(str(reviews), str(tmp_path / "in.txt"), tmp_path / "lines.csv", "cpu")
    predict_file(str(reviews), str(write_input(tmp_path / "in.csv", ROWS)), tmp_path / "table.csv", "cpu")
    lines, table = read_output(tmp_path / "lines.csv"), read_output(tmp_path / "table.csv")
    assert [row["text"] for row in lines] == ["bade figo", "luma, wi"]
    assert [row["id"] for row in lines] == ["1", "2"]
    for row, other in zip(lines, table, strict=True):
        assert float(row["probability_bad"]) == approximate(float(other["probability_bad"]))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.tsv", "nothing\tuseful\n1\t2\n", r"in\.tsv: no column 'text'"),
        ("in.csv", "1,2,3\nbade,figo,luma\n", r"in\.csv: no column 'text'"),
        ("in.tsv", "text\tother\nbade\n", r"in\.tsv:2: 1 field instead of 2"),
        ("in.csv", "text,other\nbade,figo,luma\n", r"in\.csv:2: 3 fields instead of 2"),
        ("in.tsv", "sentence1\tsentence2\nbade\tfigo\n", "reads single texts"),
        ("in.txt", "a\tb\tc\td\te\n", r"in\.txt:1: 5 columns, but a line holds one text"),
        ("in.csv", "text,text\nbade,figo\n", r"in\.csv:1: the column 'text' occurs twice"),
    ],
)
def test_predict_wrong_columns_are_rejected(
    tuned: Tuned, tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        predict_file(str(tuned("cola")), str(tmp_path / name), tmp_path / "out.csv", "cpu")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("header", ["text", "sentence", "Sentence", "text_a"])
def test_predict_tsv_header_is_not_a_text(tuned: Tuned, tmp_path: Path, header: str) -> None:
    (tmp_path / "in.tsv").write_text(f"{header}\tother\nbade figo\tx\n")
    summary = predict_file(str(tuned("cola")), str(tmp_path / "in.tsv"), tmp_path / "out.tsv", "cpu")
    assert summary.lines == 1
    assert read_output(tmp_path / "out.tsv")[0][header] == "bade figo"


@pytest.mark.parametrize("name", ["o.xlsx", "o.json", "o.txt", "o", "o.csv.gz"])
def test_predict_unknown_output_format_is_rejected(tuned: Tuned, tmp_path: Path, name: str) -> None:
    (tmp_path / "in.txt").write_text("bade\n")
    with pytest.raises(ConfigError, match="unknown format"):
        predict_file(str(tuned("cola")), str(tmp_path / "in.txt"), tmp_path / name, "cpu")


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ('{"text": "bade figo"}\n', ["bade figo"]),
        ('\ufeff{"text": "bade"}\n{"text": "figo"}\n', ["bade", "figo"]),
        ('  {"id": "7", "sentence": "bade"}\n', ["bade"]),
        ("{not json\nbade\n", ["{not json", "bade"]),
        ("[bade]\n", ["[bade]"]),
    ],
)
def test_predict_stdin_json_lines_are_parsed(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch, content: str, texts: list[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    printed = [json.loads(line) for line in albert("predict", tuned("cola"), "--input", "-").out.splitlines()]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    expected = albert("predict", tuned("cola"), "--input", tmp_path / "in.jsonl").out.splitlines()
    probabilities = [json.loads(line)["probabilities"] for line in expected]
    assert [row["probabilities"] for row in printed] == approximate(probabilities)


def test_predict_stdin_json_array_is_rejected(tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'\n[{"text": "bade"}]\n')))
    assert "-:2: is a JSON array" in albert("predict", tuned("cola"), "--input", "-", expect=3).err


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("=1+1", "'=1+1"),
        ("+SUM(A1)", "'+SUM(A1)"),
        ("-cmd", "'-cmd"),
        ("@x", "'@x"),
        ("\tx", "'\tx"),
        ("-1,5+cmd", "'-1,5+cmd"),
        ("-3.5", "-3.5"),
        ("-1e-05", "-1e-05"),
        ("-1,5", "-1,5"),
        ("+1.234,5", "+1.234,5"),
        ("text", "text"),
        (0.5, 0.5),
    ],
)
def test_escape_formula_changes_only_formulas(value: object, expected: object) -> None:
    assert escape_formula(value) == expected


@pytest.mark.parametrize(("old", "new"), [("x", "y"), (1, "1"), (None, "")])
def test_merge_columns_taken_name_is_rejected(old: object, new: object) -> None:
    with pytest.raises(InputError, match="already has a column 'prediction'"):
        merge_columns({"text": "a", "prediction": old}, {"id": "1", "prediction": new}, "in.csv")


@pytest.mark.parametrize(("old", "new"), [(1, "1"), (None, "")])
def test_merge_columns_text_is_written_as_read(old: object, new: object) -> None:
    merged = merge_columns({"context": old}, {"id": "1", "context": new, "prediction": "x"}, "in.jsonl")
    assert merged == {"context": new, "prediction": "x"}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_predict_taken_probability_column_is_rejected(tuned: Tuned, tmp_path: Path, suffix: str) -> None:
    path = write_input(tmp_path / f"in{suffix}", [{"text": "bade figo", "probability_0": "old"}])
    out = tmp_path / f"out{suffix}"
    ended = albert("predict", tuned("cola"), "--input", path, "--out", out, expect=3)
    assert f"{path}: already has a column 'probability_0'" in ended.err and not out.exists()


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_finetune_and_eval_predict_the_test_file(encoder: Path, tmp_path: Path, suffix: str) -> None:
    train = [{"text": f"bade {i}", "label": "ab"[i % 2]} for i in range(8)]
    write_input(tmp_path / f"train{suffix}", train)
    write_input(tmp_path / f"dev{suffix}", train)
    write_input(tmp_path / f"test{suffix}", [{"name": "x", "text": "bade figo"}])
    words = ["--checkpoint", encoder, "--data", tmp_path, "--device", "cpu"]
    words += [word for override in QUICK for word in ("-s", override)]
    albert("finetune", "table", *words, "--seed", 0, "--out", tmp_path / "run")
    albert("eval", "table", *words, "--runs", 1, "--out", tmp_path / "scores")
    for folder in ("run", "scores"):
        (row,) = read_output(tmp_path / folder / f"predictions.test{suffix}")
        assert (row["name"], row["text"]) == ("x", "bade figo") and row["prediction"] in ("a", "b")
    albert("eval", "table", *words, "--runs", 1, "--out", tmp_path / "scores")


def test_finetune_test_file_without_texts_stops_before_training(encoder: Path, tmp_path: Path) -> None:
    for split in ("train", "dev"):
        (tmp_path / f"{split}.csv").write_text("text,label\nbade,a\nfigo,b\n")
    (tmp_path / "test.csv").write_text("nothing,of,use\n1,2,3\n")
    words = ["--checkpoint", encoder, "--data", tmp_path, "--device", "cpu", "--out", tmp_path / "out"]
    for verb in (["finetune", "table"], ["eval", "table", "--runs", 1]):
        assert "test.csv: no column 'text'" in albert(*verb, *words, expect=3).err
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("in.txt", "sentence1\tsentence2\na\tb\n"),
        ("in.tab", "text\tlabel\nbade\tx\n"),
        ("in.txt", "id,text,stars\n1,bade,5\n"),
        ("-", "id;Text;label\n1;bade;5\n"),
        ("-", '\n"text","label"\nbade,x\n'),
    ],
)
def test_predict_header_in_plain_lines_is_rejected(
    tuned: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str
) -> None:
    (tmp_path / "in.txt").write_text(content)
    (tmp_path / "in.tab").write_text(content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    path = name if name == "-" else tmp_path / name
    said = albert("predict", tuned("cola"), "--input", path, expect=3)
    assert "is the header of a table" in said.err and ".csv" in said.err and said.out == ""


def test_predict_text_with_commas_is_no_header(tuned: Tuned, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a question, and an answer\ntext, bade\n")
    assert len(albert("predict", tuned("cola"), "--input", tmp_path / "in.txt").out.splitlines()) == 2


def test_predict_json_lines_after_blank_lines(tuned: Tuned, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = '\n\n{"id": "a", "text": "bade"}\n\n{"id": "b", "text": "figo"}\n\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    printed = albert("predict", tuned("cola"), "--input", "-").out.splitlines()
    assert [json.loads(line)["id"] for line in printed] == ["a", "b"]
    for name in ("in.jsonl", "in.json"):
        (tmp_path / name).write_text(content)
        assert albert("predict", tuned("cola"), "--input", tmp_path / name).out.splitlines() == printed


@pytest.mark.parametrize("out", ["out.jsonl", "out.csv", "out.parquet"])
def test_predict_lone_surrogate_is_replaced(out: str, tuned: Tuned, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(
        '{"text": "bade \\ud800", "notes": ["\\udfff", 1]}\n{"text": "figo", "notes": []}\n'
    )
    albert("predict", tuned("cola"), "--input", tmp_path / "in.jsonl", "--out", tmp_path / out)
    assert "bade \ufffd".encode() in (tmp_path / out).read_bytes()


def test_predict_json_lines_prefer_the_trained_column(reviews: Path, tmp_path: Path) -> None:
    rows = {
        "a.csv": "text,review\nluma wi,bade figo\n",
        "a.jsonl": '{"text": "luma wi", "review": "bade figo"}\n',
        "b.jsonl": '{"text": "bade figo"}\n',
        "c.csv": "text,REVIEW\nluma wi,bade figo\n",
        "c.jsonl": '{"text": "luma wi", "REVIEW": "bade figo"}\n',
    }
    for name, content in rows.items():
        (tmp_path / name).write_text(content)
    printed = [json.loads(albert("predict", reviews, "--input", tmp_path / name).out) for name in rows]
    assert len({json.dumps(row["probabilities"]) for row in printed}) == 1


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_predict_table_output_is_read_again(tuned: Tuned, tmp_path: Path, suffix: str) -> None:
    texts = ["bade\tfigo", "two\nlines", 'a "bade"', "luma\rwi", "plain"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    one, two = tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"
    predict_file(str(tuned("cola")), str(tmp_path / "in.jsonl"), one, "cpu")
    predict_file(str(tuned("cola")), str(one), two, "cpu")
    assert one.read_bytes() == two.read_bytes()
    assert [row["text"] for row in read_output(two)] == texts


def test_finetune_delimiter_applies_to_the_test_file(encoder: Path, tmp_path: Path) -> None:
    rows = "".join(f"bade, {i}|{'ab'[i % 2]}\n" for i in range(8))
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.csv").write_text("text|label\n" + rows)
    words = ["--checkpoint", encoder, "--data", tmp_path, "--device", "cpu", "--out", tmp_path / "out"]
    words += [word for override in (*QUICK, "table.delimiter=|") for word in ("-s", override)]
    albert("finetune", "table", *words)
    assert [row["text"] for row in read_output(tmp_path / "out" / "predictions.test.csv")][:2] == ["bade, 0", "bade, 1"]


def test_predict_table_of_choices_has_all_probabilities(encoder: Path, tmp_path: Path) -> None:
    options = [["wi", "kra", "ne", "luma"][: 2 + i % 3] for i in range(6)]
    rows = [{"question": f"bade {i}", "choices": texts, "label": 0} for i, texts in enumerate(options)]
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    finetune(prepare("table", str(encoder), str(tmp_path), QUICK, "cpu"), tmp_path / "model", 0)
    for name in ("out.csv", "out.tsv"):
        predict_file(str(tmp_path / "model"), str(tmp_path / "test.jsonl"), tmp_path / name, "cpu")
        written = read_output(tmp_path / name)
        counts = [sum(bool(row[f"probability_{letter}"]) for letter in "ABCD") for row in written]
        assert counts == [len(texts) for texts in options]


@pytest.mark.parametrize(
    "question",
    [
        {"question": "bade?", "choices": {"label": ["A", "B"], "text": ["wi", "kra"]}},
        {"question_stem": "bade?", "choices": {"label": ["A", "B"], "text": ["wi", "kra"]}},
        {"question": {"stem": "bade?", "choices": [{"label": "A", "text": "wi"}, {"label": "B", "text": "kra"}]}},
        {"premise": "bade?", "choices": ["wi", "kra"]},
        {"question": "bade?", "options": [1, 2]},
    ],
)
def test_predict_choice_layouts_equal_those_of_training(
    encoder: Path, tmp_path: Path, question: dict[str, object]
) -> None:
    for split in ("train", "dev"):
        rows = [{"id": str(number)} | question | {"answerKey": "AB"[number % 2]} for number in range(8)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    finetune(prepare("table", str(encoder), str(tmp_path), QUICK, "cpu"), tmp_path / "model", 0)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "dev.parquet")
    scored = (tmp_path / "model" / "predictions.dev.jsonl").read_text().splitlines()
    for name in ("dev.jsonl", "dev.parquet"):
        predict_file(str(tmp_path / "model"), str(tmp_path / name), tmp_path / "out.jsonl", "cpu")
        predicted = (tmp_path / "out.jsonl").read_text().splitlines()
        assert [json.loads(line)["probabilities"] for line in predicted] == [
            pytest.approx(json.loads(line)["probabilities"], abs=2e-5) for line in scored
        ]


def test_predict_text_that_is_an_object_is_rejected(reviews: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"review": {"en": "bade figo"}}\n')
    with pytest.raises(InputError, match=r'in\.jsonl:1: no string "text"'):
        predict_file(str(reviews), str(tmp_path / "in.jsonl"), tmp_path / "out.jsonl", "cpu")


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([], []),
        ([[{"id": 1}, {"id": 2, "b": "x"}]], [{"id": 1, "b": None}, {"id": 2, "b": "x"}]),
        ([[{"id": 1}], [{"id": 2, "b": "x"}]], [{"id": 1, "b": None}, {"id": 2, "b": "x"}]),
        ([[{"id": 1, "b": None}], [{"id": 2, "b": 3}]], [{"id": 1, "b": None}, {"id": 2, "b": 3}]),
        ([[{"a": 1}], [{"a": 2.5}]], [{"a": 1.0}, {"a": 2.5}]),
    ],
)
def test_parquet_output_has_the_keys_of_all_rows(
    calls: list[list[dict[str, object]]], expected: list[dict[str, object]], tmp_path: Path
) -> None:
    with open_prediction_writer(tmp_path / "out.parquet", "in.jsonl") as write:
        for rows in calls:
            write(rows)
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == expected


def test_jsonl_output_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    with open_prediction_writer(tmp_path / "out.jsonl", "in.jsonl") as write:
        write([{"a": float("nan"), "b": [1.5, float("inf")]}, {"a": 2.0, "b": []}])
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert lines == ['{"a": null, "b": [1.5, null]}', '{"a": 2.0, "b": []}']


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_predict_lists_of_other_types_become_json(tuned: Tuned, tmp_path: Path, suffix: str) -> None:
    day = datetime.date(2024, 2, 29)
    numbers = [("a", float("nan")), ("b", 1.5)]
    price = {"eur": Decimal("1.50")}
    columns = {"text": ["bade"], "days": [[day]], "price": [price], "raw": [[b"x"]], "map": [numbers]}
    types = {"map": pa.map_(pa.string(), pa.float64())}
    table = pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})
    pq.write_table(table, tmp_path / "in.parquet")
    predict_file(str(tuned("cola")), str(tmp_path / "in.parquet"), tmp_path / f"out{suffix}", "cpu")
    (row,) = read_output(tmp_path / f"out{suffix}")
    values = [row[name] for name in ("days", "price", "raw", "map")]
    if suffix != ".jsonl":
        values = [json.loads(value) for value in values]
    assert values == [["2024-02-29"], {"eur": "1.50"}, ["b'x'"], [["a", None], ["b", 1.5]]]


@pytest.mark.parametrize("values", [(1, "one"), (2**62 + 1, 0.5), (2**64,), (2**63, -1)])
def test_parquet_output_without_a_common_type_is_rejected(values: tuple[object, ...], tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match=r"out\.parquet: a column has values of several types"),
        open_prediction_writer(tmp_path / "out.parquet", "in.jsonl") as write,
    ):
        for value in values:
            write([{"a": value}])
    assert not list(tmp_path.iterdir())


def test_predict_json_null_or_empty_id_is_line_number(tuned: Tuned, tmp_path: Path) -> None:
    lines = ['{"id": null, "text": "bade"}', '{"id": "", "text": "bade"}', '{"id": 7, "text": "bade"}']
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    predict_file(str(tuned("cola")), str(tmp_path / "in.jsonl"), tmp_path / "out.jsonl", "cpu")
    assert [row["id"] for row in read_output(tmp_path / "out.jsonl")] == ["1", "2", 7]
