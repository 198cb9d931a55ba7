"""Read the label cells of a table: classes, values, and missing values under their usual spellings."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from albert_cli import console
from albert_cli.errors import InputError
from albert_cli.tasks.classification import comparable_name
from albert_cli.tasks.columns import require_column
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.text_table import TextTable

# Spellings of a missing value in lower case. The first group never names a class; the second one may.
_NEVER_A_CLASS = frozenset(
    ("", "nan", "null", "#n/a", "<na>", "#na", "#value!", "#ref!", "#div/0!", "#null!", "#num!", "#name?")
)
_MAYBE_A_CLASS = frozenset(("na", "n/a", "n.a.", "none", "nil", "missing", "-", "--", "–", "—", "?", "."))
# A percentage, an amount of money, or a number with thousands separators and a decimal sign.
_NUMBER_WITH_UNIT = re.compile(r"[+-]?[$€£]?\s?(?:\d+|\d{1,3}(?:[.,'\u2019 \u00a0]\d{3})+)(?:[.,]\d+)?\s?[%$€£]?")
_MAX_USUAL_CLASSES = 20
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


class LabelCell(NamedTuple):
    """A label without surrounding blanks, and its file and line."""

    text: str
    where: str


def read_label_cells(table: TextTable, settings: TableSettings, column: int | None = None) -> list[LabelCell]:
    """Return the labels of all rows; with `table.decimal = ","` decimal commas become points."""
    index = require_column(table, "label", settings) if column is None else column
    cells = []
    for row, cells_of_row in enumerate(table.cells):
        text = cells_of_row[index].strip()
        if settings.decimal == "," and is_number(text.replace(",", ".")):
            text = text.replace(",", ".")
        cells.append(LabelCell(text, table.where(row)))
    return cells


def is_number(text: str) -> bool:
    """Return True for a finite number with a decimal point."""
    return _NUMBER.fullmatch(text) is not None


def is_missing(text: str, classes: Sequence[str] = ()) -> bool:
    """Return True for a usual spelling of a missing value that is not one of the classes."""
    return text not in classes and text.lower() in _NEVER_A_CLASS | _MAYBE_A_CLASS


def missing_label(cell: LabelCell) -> InputError:
    """Return the error for a row without a label."""
    problem = f"the label {cell.text!r} is a missing value" if cell.text else "the label is empty"
    hint = "fill it in, remove the row, or use -s table.missing=skip"
    if cell.text.lower() in _MAYBE_A_CLASS:
        hint += "; list it in table.labels if it is a class"
    return InputError(f"{cell.where}: {problem}", hint)


def infer_classes(cells: Sequence[LabelCell], settings: TableSettings, origin: str) -> tuple[str, ...]:
    """Return the classes of labels in order, or () for values to predict by regression.

    Labels are values if all are numbers and at least one has a fraction. Raises `InputError` for missing values, for
    numbers next to fractions that cannot be read, and for fewer than two classes.
    """
    cells = _without_missing(cells, settings)
    names = {cell.text for cell in cells}
    if settings.kind == "auto" and _are_values(cells):
        return ()
    for cell in cells:
        _reject_nested(cell)
        if cell.text.lower() in _MAYBE_A_CLASS:
            console.warn(f"{cell.where}: the label {cell.text!r} counts as a class, not as a missing value")
            break
    classes = tuple(sorted(names, key=_class_order))
    _warn_about_spellings(classes, origin)
    if len(classes) > max(_MAX_USUAL_CLASSES, len(cells) / 2):
        hint = "use -s table.label=COLUMN to choose another column, or -s table.kind=regression for values"
        console.warn(f"{origin}: {len(cells)} labels are {len(classes)} different classes; {hint}")
    if len(classes) < 2:
        problem = f"only the label {classes[0]!r}" if classes else "no labels"
        raise InputError(f"{origin}: {problem}, so there is nothing to learn", "provide two classes or more")
    return classes


def _warn_about_spellings(classes: Sequence[str], origin: str) -> None:
    """Print a warning that lists classes which differ only in case, blanks, hyphens or underscores."""
    by_name: dict[str, list[str]] = {}
    for label in classes:
        by_name.setdefault(comparable_name(label), []).append(label)
    for spellings in by_name.values():
        if len(spellings) > 1:
            same = " and ".join(map(repr, spellings))
            console.warn(f"{origin}: the labels {same} are different classes; correct them if they mean the same")


def match_model_labels(cells: Sequence[LabelCell], model_labels: Sequence[str]) -> tuple[str, ...] | None:
    """Return a model's classes in their order, spelled as in the labels, or () for a model that predicts a value.

    None if the labels are not among these classes (in any case), or are no numbers.
    """
    present = [cell.text for cell in cells if not is_missing(cell.text, model_labels)]
    if len(model_labels) == 1:
        return () if present and all(map(is_number, present)) else None
    spelling = {comparable_name(text): text for text in present}
    names = [comparable_name(label) for label in model_labels]
    if not present or len(spelling) < len(set(present)) or not set(spelling) <= set(names):
        return None
    return tuple(spelling.get(name, label) for name, label in zip(names, model_labels, strict=True))


def _without_missing(cells: Sequence[LabelCell], settings: TableSettings) -> list[LabelCell]:
    """Return the labels without missing values; raises `InputError` for one unless `table.missing = "skip"`.

    A spelling such as "-" or "NA" may be a class. It is a missing value if all other labels are numbers.
    """
    present = [cell for cell in cells if not is_missing(cell.text)]
    others_are_numbers = bool(present) and all(is_number(cell.text.replace(",", ".")) for cell in present)
    labels = []
    for cell in cells:
        is_certain = cell.text.lower() in _NEVER_A_CLASS
        if is_missing(cell.text) and (is_certain or others_are_numbers or settings.missing == "skip"):
            if settings.missing == "error":
                raise missing_label(cell)
            continue
        labels.append(cell)
    return labels


def _are_values(cells: Sequence[LabelCell]) -> bool:
    """Return True if labels are numbers with fractions; raises `InputError` if only some of them are."""
    has_comma = [cell for cell in cells if re.fullmatch(r"[+-]?\d+,\d+", cell.text)]
    if has_comma and all(is_number(cell.text.replace(",", ".")) for cell in cells):
        message = f"{has_comma[0].where}: the label {has_comma[0].text!r} is a number with a comma"
        hint = "use -s 'table.decimal=\",\"' for decimal commas, remove thousands separators, or use "
        raise InputError(message, hint + "-s table.kind=classification")
    if not any(is_number(cell.text) and float(cell.text) % 1 != 0 for cell in cells):
        _reject_units(cells)
        return False
    for cell in cells:
        if not is_number(cell.text):
            message = f"{cell.where}: the label {cell.text!r} is not a number, but others have fractions"
            raise InputError(message, "correct it, remove the row, or use -s table.kind=classification")
    return True


def _reject_units(cells: Sequence[LabelCell]) -> None:
    """Raise `InputError` if all labels are numbers and some have a unit or thousands separators."""
    has_unit = [cell for cell in cells if not is_number(cell.text)]
    if has_unit and all(is_number(cell.text) or _NUMBER_WITH_UNIT.fullmatch(cell.text) for cell in cells):
        message = f"{has_unit[0].where}: the label {has_unit[0].text!r} is a number with other characters"
        raise InputError(message, "write plain numbers such as 1234.5, or use -s table.kind=classification")


def _reject_nested(cell: LabelCell) -> None:
    """Raise `InputError` for a label that is a JSON list or object."""
    if cell.text[:1] not in ("[", "{"):
        return
    try:
        value = json.loads(cell.text)
    except (json.JSONDecodeError, RecursionError):
        return
    kind = "a list" if isinstance(value, list) else "an object"
    raise InputError(f"{cell.where}: the label is {kind}: {cell.text}", "write one class as a text")


def _class_order(label: str) -> tuple[bool, float, str]:
    """Sort whole numbers by size (2 before 10), then everything else by characters."""
    is_whole = label.isascii() and label.removeprefix("-").isdigit()
    return (not is_whole, float(label) if is_whole else 0.0, label)
