"""Read a table's column of labels, and decide whether they are classes, values to predict, or missing.

Every decision looks at all labels of a file, so that an ambiguous one (such as "NA" or "1,5") is read like the others.
"""

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

# Spellings of a missing value, in lower case: those that never name a class, and those that may.
_NEVER_A_CLASS = frozenset(
    ("", "nan", "null", "#n/a", "<na>", "#na", "#value!", "#ref!", "#div/0!", "#null!", "#num!", "#name?")
)
_MAYBE_A_CLASS = frozenset(("na", "n/a", "n.a.", "none", "nil", "missing", "-", "--", "–", "—", "?", "."))
# A percentage, an amount of money, or a number with thousands separators and a decimal sign.
_NUMBER_WITH_UNIT = re.compile(r"[+-]?[$€£]?\s?(?:\d+|\d{1,3}(?:[.,'\u2019 \u00a0]\d{3})+)(?:[.,]\d+)?\s?[%$€£]?")
_MAX_USUAL_CLASSES = 20  # with more classes, and more than half as many as labels, a warning asks for another column
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


class LabelCell(NamedTuple):
    """A label without surrounding blanks, and its file and line."""

    text: str
    where: str


def read_label_cells(table: TextTable, settings: TableSettings, column: int | None = None) -> list[LabelCell]:
    """Return the labels of all rows; with `table.decimal = ","` decimal commas become points.

    Without `column` it is the column with the role "label". Raises `InputError` if there is none.
    """
    if column is None:
        column = require_column(table, "label", settings)
    labels = []
    for index, row in enumerate(table.cells):
        text = row[column].strip()
        if settings.decimal == "," and _is_number_with_comma(text):
            text = text.replace(",", ".")
        labels.append(LabelCell(text, table.where(index)))
    return labels


def is_number(text: str) -> bool:
    """Return True for a whole number, or a finite number with a decimal point."""
    return _NUMBER.fullmatch(text) is not None


def _is_number_with_comma(text: str) -> bool:
    """Return True for a whole number, or a finite number with a decimal comma or point."""
    return is_number(text.replace(",", "."))


def is_missing(text: str, classes: Sequence[str] = ()) -> bool:
    """Return True for a usual spelling of a missing value, unless it is one of the classes."""
    return text not in classes and text.lower() in _NEVER_A_CLASS | _MAYBE_A_CLASS


def missing_label(cell: LabelCell) -> InputError:
    """Return the error for a row without a label."""
    problem = f"the label {cell.text!r} is a missing value" if cell.text else "the label is empty"
    hint = "fill it in, remove the row, or use -s table.missing=skip"
    if cell.text.lower() in _MAYBE_A_CLASS:
        hint += "; list it in table.labels if it is a class"
    return InputError(f"{cell.where}: {problem}", hint)


def infer_classes(cells: Sequence[LabelCell], settings: TableSettings, origin: str) -> tuple[str, ...]:
    """Return the classes in order, or () if the labels are values to predict by regression.

    Labels are values if all are numbers and at least one has a fraction. Raises `InputError` for missing values unless
    `table.missing` skips them, for numbers in a format that is not read, for JSON, and for fewer than two classes.
    """
    cells = _without_missing(cells, settings)
    if settings.kind == "auto" and _are_values(cells):
        return ()
    for cell in cells:
        _reject_json(cell)
    maybe_missing = next((cell for cell in cells if cell.text.lower() in _MAYBE_A_CLASS), None)
    if maybe_missing is not None:
        label = maybe_missing.text
        console.warn(f"{maybe_missing.where}: the label {label!r} counts as a class, not as a missing value")
    classes = tuple(sorted({cell.text for cell in cells}, key=_class_order))
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
    spellings_by_name: dict[str, list[str]] = {}
    for label in classes:
        spellings_by_name.setdefault(comparable_name(label), []).append(label)
    for spellings in spellings_by_name.values():
        if len(spellings) > 1:
            labels = " and ".join(map(repr, spellings))
            console.warn(f"{origin}: the labels {labels} are different classes; correct them if they mean the same")


def match_model_labels(cells: Sequence[LabelCell], model_labels: Sequence[str]) -> tuple[str, ...] | None:
    """Return a model's classes if all labels are among them, or () if the model predicts a value and they are numbers.

    The order is the model's, the spelling is that of the labels. Return None if the labels do not fit the model.
    """
    present = [cell.text for cell in cells if not is_missing(cell.text, model_labels)]
    if not present:
        return None
    if len(model_labels) == 1:
        return () if all(map(is_number, present)) else None
    spelling = {comparable_name(text): text for text in present}
    has_two_spellings = len(spelling) < len(set(present))
    model_names = [comparable_name(label) for label in model_labels]
    if has_two_spellings or not set(spelling) <= set(model_names):
        return None
    return tuple(spelling.get(name, label) for name, label in zip(model_names, model_labels, strict=True))


def _without_missing(cells: Sequence[LabelCell], settings: TableSettings) -> list[LabelCell]:
    """Return the labels without missing values; raises `InputError` for one unless `table.missing = "skip"`.

    A spelling such as "-" or "NA" may be a class. It is a missing value if all other labels are numbers.
    """
    present = [cell for cell in cells if not is_missing(cell.text)]
    if settings.missing == "skip":
        return present
    others_are_numbers = bool(present) and all(_is_number_with_comma(cell.text) for cell in present)
    for cell in cells:
        is_never_a_class = cell.text.lower() in _NEVER_A_CLASS
        if is_never_a_class or (is_missing(cell.text) and others_are_numbers):
            raise missing_label(cell)
    return list(cells)


def _are_values(cells: Sequence[LabelCell]) -> bool:
    """Return True if all labels are numbers and at least one has a fraction, False if none has a fraction.

    Raises `InputError` for text next to fractions, and for numbers with a comma, a unit or thousands separators.
    """
    with_comma = [cell for cell in cells if re.fullmatch(r"[+-]?\d+,\d+", cell.text)]
    if with_comma and all(_is_number_with_comma(cell.text) for cell in cells):
        message = f"{with_comma[0].where}: the label {with_comma[0].text!r} is a number with a comma"
        hint = "use -s 'table.decimal=\",\"' for decimal commas, remove thousands separators, or use "
        raise InputError(message, hint + "-s table.kind=classification")
    has_fractions = any(is_number(cell.text) and float(cell.text) % 1 != 0 for cell in cells)
    if not has_fractions:
        _reject_units(cells)
        return False
    for cell in cells:
        if not is_number(cell.text):
            message = f"{cell.where}: the label {cell.text!r} is not a number, but others have fractions"
            raise InputError(message, "correct it, remove the row, or use -s table.kind=classification")
    return True


def _reject_units(cells: Sequence[LabelCell]) -> None:
    """Raise `InputError` if all labels are numbers, some of them with a unit or thousands separators."""
    not_plain = [cell for cell in cells if not is_number(cell.text)]
    if not_plain and all(_NUMBER_WITH_UNIT.fullmatch(cell.text) for cell in not_plain):
        message = f"{not_plain[0].where}: the label {not_plain[0].text!r} is a number with other characters"
        raise InputError(message, "write plain numbers such as 1234.5, or use -s table.kind=classification")


def _reject_json(cell: LabelCell) -> None:
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
    """Return the sort key of a class: whole numbers come first, by size (2 before 10), then other names."""
    if label.isascii() and label.removeprefix("-").isdigit():
        return False, float(label), label
    return True, 0.0, label
