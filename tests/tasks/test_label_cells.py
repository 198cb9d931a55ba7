"""Tests of `tasks.label_cells`: classes, values, missing values, and numbers in other formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from albert_cli.config import validate_recipe
from albert_cli.errors import InputError
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.classification import Classification
from albert_cli.tasks.label_cells import is_missing, is_number
from albert_cli.tasks.table import ModelHead, open_table
from albert_cli.tasks.table_settings import TableSettings

NUMBERS = [str(number / 2) for number in range(20)]


def open_labels(folder: Path, cells: list[str], **settings: Any) -> AnyTask:
    """Open a CSV file with a text and a label in each row, as train and dev."""
    path = folder / "a.csv"
    rows = "".join(f'text {number},"{label}"\n' for number, label in enumerate(cells))
    path.write_text("text,label\n" + rows, encoding="utf-8")
    return open_table(validate_recipe(TableSettings, {"train": str(path), "dev": str(path)} | settings, "recipe"))


def labels_of(task: AnyTask, split: str = "dev") -> list[int | float | None]:
    assert isinstance(task, Classification)
    return [example.label for example in task.read(split)]


MISSING = ["NA", "n/a", "NaN", "nan", "null", "None", "-", "?", "#N/A", "<NA>", ".", "", "#VALUE!", r"\N"]
# Of spreadsheets in German, French, Spanish, Russian, Turkish, Dutch, Swedish, Danish, Hungarian and Czech
MISSING += [
    "#NV",
    "#WERT!",
    "#BEZUG!",
    "#NOM?",
    "#¡VALOR!",
    "#N/D",
    "#Н/Д",
    "#ЗНАЧ!",
    "#YOK",
    "#N/B",
    "#SAKNAS!",
    "#I/T",
    "#HIÁNYZIK",
    "#NENÍ_K_DISPOZICI",
]


@pytest.mark.parametrize("missing", MISSING)
def test_infer_classes_missing_value_names_file_and_line(tmp_path: Path, missing: str) -> None:
    for labels in (NUMBERS, ["0", "1"] * 9):
        with pytest.raises(InputError) as raised:
            open_labels(tmp_path, [*labels[:7], missing, *labels[7:]])
        assert raised.value.message.startswith(f"{tmp_path / 'a.csv'}:9: the label")
        assert "table.missing=skip" in str(raised.value.hint)


@pytest.mark.parametrize("missing", ["NA", "n/a", "nan", "#N/A", "", " - "])
def test_infer_classes_skips_missing_values(tmp_path: Path, missing: str, capfd: pytest.CaptureFixture[str]) -> None:
    task = open_labels(tmp_path, [*NUMBERS, missing], missing="skip")
    assert task.labels == () and labels_of(task) == [number / 2 for number in range(20)]
    assert "skipped 1 of 21 rows without a label" in capfd.readouterr().err


@pytest.mark.parametrize("value", ["1,5", "0,25", "-3,0", "10,75", "1,250"])
def test_infer_classes_decimal_comma_needs_a_setting(tmp_path: Path, value: str) -> None:
    labels = ["2", "3,5", value]
    with pytest.raises(InputError, match=r"a\.csv:3: the label '3,5' is a number with a comma") as raised:
        open_labels(tmp_path, labels)
    assert "table.decimal" in str(raised.value.hint)
    task = open_labels(tmp_path, labels, decimal=",")
    assert task.labels == () and labels_of(task) == [2.0, 3.5, float(value.replace(",", "."))]
    assert open_labels(tmp_path, labels, kind="classification").labels != ()


@pytest.mark.parametrize("kind", ["auto", "regression"])
@pytest.mark.parametrize("labels", [["12,5", "999", "1.250"], ["12,5", "1.250,75"], ["12", "1.250"]])
def test_read_label_cells_point_and_comma_are_rejected(tmp_path: Path, labels: list[str], kind: str) -> None:
    with pytest.raises(InputError, match=r"a\.csv:\d: the label '1\.250.*' has a point") as raised:
        task = open_labels(tmp_path, labels, decimal=",", kind=kind)
        task.read("dev")
    assert "separate thousands" in str(raised.value.hint)


@pytest.mark.parametrize(("second", "message"), [(0.5, None), ("0,5", r"dev\.jsonl:1: the label '1\.5' has a point")])
def test_read_label_cells_json_numbers_have_points(tmp_path: Path, second: float | str, message: str | None) -> None:
    (tmp_path / "train.csv").write_text('text,label\na,"2,5"\nb,"3,0"\n', encoding="utf-8")
    rows = [{"text": "a", "label": 1.5}, {"text": "b", "label": second}]
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = open_table(TableSettings(decimal=","), str(tmp_path))
    assert labels_of(task, "train") == [2.5, 3.0]
    if message is None:
        assert labels_of(task) == [1.5, 0.5]
    else:
        with pytest.raises(InputError, match=message):
            task.read("dev")


@pytest.mark.parametrize("stray", ["good", ">5", "4 stars", "1.5.2", "5%", "1_0"])
def test_infer_classes_text_among_fractions_is_rejected(tmp_path: Path, stray: str) -> None:
    with pytest.raises(InputError, match=r"a\.csv:22: the label .* is not a number, but others have fractions"):
        open_labels(tmp_path, [*NUMBERS, stray])
    assert len(open_labels(tmp_path, [*NUMBERS, stray], kind="classification").labels) == 21


def test_infer_classes_dash_among_words_is_a_class(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    task = open_labels(tmp_path, ["good", "-", "bad"])
    assert task.labels == ("-", "bad", "good")
    assert labels_of(task) == [2, 0, 1]
    assert "a.csv:3: the label '-' counts as a class, not as a missing value" in capfd.readouterr().err
    with pytest.raises(InputError, match=r"a\.csv:3: the label is empty") as raised:
        open_labels(tmp_path, ["good", "", "bad"])
    assert "table.labels" not in str(raised.value.hint)
    for missing in ("nan", "#NV", "#I/T", "#WERT!", "#OK!"):
        with pytest.raises(InputError, match=rf"a\.csv:3: the label '{missing}' is a missing value") as raised:
            open_labels(tmp_path, ["good", missing, "bad"])
        assert "list it in table.labels if it is a class" in str(raised.value.hint)
        assert open_labels(tmp_path, ["good", missing], labels=["good", missing]).labels == ("good", missing)


@pytest.mark.parametrize("blank", [" ", "\t", "  ", "\u00a0", "\u3000"])
def test_read_label_cells_strips_blanks(tmp_path: Path, blank: str) -> None:
    task = open_labels(tmp_path, ["good", f"good{blank}", f"{blank}bad"])
    assert task.labels == ("bad", "good") and labels_of(task) == [1, 1, 0]


@pytest.mark.parametrize("label", [{"a": 1}, {"text": "x"}, {}])
def test_infer_classes_nested_label_is_rejected(tmp_path: Path, label: object) -> None:
    path = tmp_path / "a.jsonl"
    for first_label in ("good", "-"):
        rows = [{"text": "x", "label": first_label}, {"text": "y", "label": label}]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        with pytest.raises(InputError, match=r"a\.jsonl:2: the label is"):
            open_table(validate_recipe(TableSettings, {"train": str(path)}, "recipe"))


def test_infer_classes_huge_integer_is_no_list(tmp_path: Path) -> None:
    label = "[" + "9" * 5000 + "]"  # Python parses at most 4,300 digits
    assert open_labels(tmp_path, [label, "b"], kind="classification").labels == (label, "b")


def test_class_none_of_a_model_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\na,None\nb,low\nc,\n", encoding="utf-8")
    task = open_table(TableSettings(missing="skip"), str(tmp_path / "a.csv"), ModelHead(("high", "low", "none")))
    assert labels_of(task.for_scoring()) == [2, 1]


def test_labels_of_dev_may_be_spelled_differently(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,0.0\nb,1.0\nc,\n", encoding="utf-8")
    (tmp_path / "dev.csv").write_text("text,label\na,1\nb,0\n", encoding="utf-8")
    task = open_table(TableSettings(missing="skip", kind="classification"), str(tmp_path))
    assert labels_of(task) == [1, 0]
    (tmp_path / "dev.csv").write_text("text,label\na,2\nb,0\n", encoding="utf-8")
    task = open_table(TableSettings(missing="skip", kind="classification"), str(tmp_path))
    with pytest.raises(InputError, match=r"dev\.csv:2: label '2' is not one of"):
        labels_of(task)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_labels_of_test_may_be_hidden(tmp_path: Path, kind: Literal["classification", "regression"]) -> None:
    for split, labels in (("train", "01"), ("dev", "10"), ("test", ("-1", "-1"))):
        rows = "".join(f"a text,{label}\n" for label in labels)
        (tmp_path / f"{split}.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
    task = open_table(TableSettings(kind=kind), str(tmp_path))
    assert labels_of(task, "test") == [None, None]
    with pytest.raises(InputError, match=r"test\.csv:2: the label '-1' is a missing value"):
        labels_of(task.for_scoring("test"))


def test_is_number_and_is_missing_cases() -> None:
    assert all(is_number(text) for text in ("1", "-2", "+.5", "3.", "1e-3", "0.50"))
    assert not any(is_number(text) for text in ("", "1,5", "1_0", "inf", "nan", "0x1", "1 2", "٣x"))
    assert not any(is_missing(text) for text in ("#wow!", "#Wow!", "#ML", "#1!", "WERT!", "# WERT!"))
    assert is_missing("NA") and not is_missing("NA", ("NA",)) and not is_missing("0")
    assert not is_missing("None", ("none",)) and not is_missing("N/A", ("n/a", "b")) and is_missing("None", ("n/a",))


@pytest.mark.parametrize(
    "labels",
    [
        ["1.200,50", "3.100,75"],
        ["1,200.50", "990", "10"],
        ["$5", "$7.50"],
        ["50%", "7%", "12"],
        ["1 200,5", "3,5"],
        ["₹1,200", "₹950"],
        ["¥980", "1200円"],
        ["1\u202f200", "950"],
        ["٣٫٥", "٤٫٠"],
        ["٢٬٠٠٠", "50 ٪"],
        ["₽5", "₩7"],
    ],
)
def test_infer_classes_numbers_with_units_are_rejected(tmp_path: Path, labels: list[str]) -> None:
    with pytest.raises(InputError, match="is a number with") as raised:
        open_labels(tmp_path, labels)
    assert "table.kind=classification" in str(raised.value.hint)
    assert len(open_labels(tmp_path, labels, kind="classification").labels) == len(labels)


def test_infer_classes_warns_of_spellings_and_many_classes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    open_labels(tmp_path, ["good", "Good", "bad", "not-good", "not good"])
    printed = capfd.readouterr().err
    assert "the labels 'Good' and 'good' are different classes" in printed
    assert "the labels 'not good' and 'not-good' are different classes" in printed
    open_labels(tmp_path, ["n\u00e9gatif", "ne\u0301gatif", "positif"])
    assert r"'ne\u0301gatif' and 'n\xe9gatif' are different classes" in " ".join(capfd.readouterr().err.split())
    open_labels(tmp_path, ["iyi", "\u0130yi", "\u2764", "\u2764\ufe0f"])
    printed = " ".join(capfd.readouterr().err.split())
    assert "the labels 'iyi' and 'İyi' are different classes" in printed
    assert r"the labels '\u2764' and '\u2764\ufe0f' are different classes" in printed
    open_labels(tmp_path, [f"text number {n}" for n in range(30)])
    assert "30 labels are 30 different classes" in capfd.readouterr().err
    open_labels(tmp_path, [f"class {n % 10}" for n in range(30)])
    assert "warning" not in capfd.readouterr().err
