"""Read a table's column of labels, and decide whether they are classes, values to predict, or missing.

The decision depends on all labels of a file, because a single label such as "NA" or "1,5" may be ambiguous.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from albert_cli import console
from albert_cli.errors import InputError
from albert_cli.tasks.columns import require_label_column
from albert_cli.tasks.delimited import is_delimited_file
from albert_cli.tasks.label_names import comparable_name, visible_name
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.text_table import TextTable

# Spellings of a missing value, in lower case. A spelling that `table.labels` lists is a class. Otherwise:
# * A spelling in the first set, and an error of a spreadsheet such as #WERT! or #NOM?, is never a class.
# * A spelling in the second set may be a class, such as "none". `infer_classes` takes it for one, unless all other
#   labels are numbers or `table.missing` is "skip".
# The last lines of the first set have Excel's #N/A in German, Italian, Spanish, Portuguese, Russian, Turkish, Dutch,
# Swedish, Danish, Norwegian, Hungarian and Czech.
_NEVER_INFERRED = frozenset(
    (
        *("", "nan", "null", r"\n", "<na>"),
        *("#n/a", "#na", "#value!", "#ref!", "#div/0!", "#null!", "#num!", "#name?"),
        *("#nv", "#n/d", "#н/д", "#yok", "#n/b", "#saknas!", "#i/t"),
        *("#hiányzik", "#není_k_dispozici"),
    )
)
_SPREADSHEET_ERROR = re.compile(r"#\S+[!?]")  # in capital letters
_SOMETIMES_INFERRED = frozenset(("na", "n/a", "n.a.", "none", "nil", "missing", "-", "--", "–", "—", "?", "."))
# A percentage, an amount of money, or a number with thousands separators and a decimal sign.
_UNITS = r"$¢-¥؋৳฿៛\u20a0-\u20cf﷼￠￡￥￦円元원%٪％"  # \u20a0-\u20cf are Unicode's currency symbols, such as € and ₹
_SEPARATORS = r".,'\u2019 \u00a0\u2009\u202f٬"
_NUMBER_WITH_UNIT = re.compile(
    rf"[+-]?[{_UNITS}]?\s?(?:\d+|\d{{1,3}}(?:[{_SEPARATORS}]\d{{3}})+)(?:[.,٫]\d+)?\s?[{_UNITS}]?"
)
# A warning is printed if there are more classes than this number, and more than half as many classes as labels.
_MAX_USUAL_CLASSES = 20
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


class LabelCell(NamedTuple):
    """A label without surrounding blanks, and its file and line."""

    text: str
    where: str


def read_label_cells(table: TextTable, settings: TableSettings) -> list[LabelCell]:
    """Return the labels of all rows; with `table.decimal = ","` decimal commas become points.

    Raises `InputError` if there is no column of labels, and with `table.decimal = ","` for a number with a point in
    delimited text or among decimal commas, where the point may separate thousands.
    """
    column = require_label_column(table, settings)
    texts = [row[column].strip() for row in table.cells]
    rejects_points = False
    if settings.decimal == ",":
        # In JSON and Parquet, a number such as 1.5 has a decimal point.
        rejects_points = is_delimited_file(table.origin) or any(
            "," in text and _is_number_with_comma(text) for text in texts
        )
    labels = []
    for index, text in enumerate(texts):
        if rejects_points and "." in text and (is_number(text) or _NUMBER_WITH_UNIT.fullmatch(text)):
            message = f"{table.where(index)}: the label {text!r} has a point, but table.decimal is ','"
            remedy = "remove the points that separate thousands"
            raise InputError(message, f"{remedy}, or omit table.decimal if a point is the decimal sign")
        has_decimal_comma = settings.decimal == "," and _is_number_with_comma(text)
        labels.append(LabelCell(text.replace(",", ".") if has_decimal_comma else text, table.where(index)))
    return labels


def is_number(text: str) -> bool:
    """Return True for a decimal number such as -3, 1.5 or 1e-3; NaN and infinity are not numbers."""
    return _NUMBER.fullmatch(text) is not None


def _is_number_with_comma(text: str) -> bool:
    """Return True for a number as in `is_number`, which may have a decimal comma instead of a point."""
    return is_number(text.replace(",", "."))


def is_missing(text: str, classes: Sequence[str] = (), *, ambiguous: bool = True) -> bool:
    """Return True for a usual spelling of a missing value, unless it is one of the classes in any spelling.

    Without `ambiguous`, spellings such as "none", which `infer_classes` may take for a class, do not count.
    """
    spellings = _NEVER_INFERRED | _SOMETIMES_INFERRED if ambiguous else _NEVER_INFERRED
    is_error = text.isupper() and _SPREADSHEET_ERROR.fullmatch(text) is not None
    is_spelling = is_error or text.lower() in spellings
    return is_spelling and comparable_name(text) not in map(comparable_name, classes)


def are_hidden(labels: Sequence[str], classes: Sequence[str] = ()) -> bool:
    """Return True if all labels are -1, with which data sets of the Hub hide them, and -1 is no class."""
    return "-1" not in map(comparable_name, classes) and all(comparable_name(label) == "-1" for label in labels)


def missing_label(cell: LabelCell) -> InputError:
    """Return the error for a row without a label."""
    problem = f"the label {cell.text!r} is a missing value" if cell.text else "the label is empty"
    hint = "fill it in, remove the row, or use -s table.missing=skip"
    if cell.text:
        hint += "; list it in table.labels if it is a class"
    return InputError(f"{cell.where}: {problem}", hint)


def infer_classes(cells: Sequence[LabelCell], settings: TableSettings, origin: str) -> tuple[str, ...]:
    """Return the classes in order, or () if the labels are values to predict by regression.

    With `table.kind = "auto"` labels are values if all are numbers and at least one has a fraction. The caller handles
    `table.kind = "regression"` and the classes in `table.labels`. Raises `InputError` for missing values unless
    `table.missing` skips them, for numbers with a comma or a unit, for labels that are JSON lists or objects, and for
    fewer than two classes.
    """
    cells = _without_missing(cells, settings)
    if settings.kind == "auto" and _are_values(cells):
        return ()
    for cell in cells:
        if cell.text[:1] in ("[", "{"):
            _reject_json(cell)
    maybe_missing = next((cell for cell in cells if cell.text.lower() in _SOMETIMES_INFERRED), None)
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
    """Print a warning that lists classes with the same `comparable_name`."""
    spellings_by_name: dict[str, list[str]] = {}
    for label in classes:
        spellings_by_name.setdefault(comparable_name(label), []).append(label)
    for spellings in spellings_by_name.values():
        if len(spellings) > 1:
            look_alike = len(set(map(visible_name, spellings))) < len(spellings)
            labels = " and ".join(map(ascii if look_alike else repr, spellings))
            console.warn(f"{origin}: the labels {labels} are different classes; correct them if they mean the same")


def match_model_labels(cells: Sequence[LabelCell], model_labels: Sequence[str]) -> tuple[str, ...] | None:
    """Return a model's classes in its order, in the spelling of the labels, if all labels are among them.

    If all labels are exact names of classes, the names remain. Return () for a model that predicts a value, if all
    labels are numbers. Return None if the labels do not fit the model, or if only the spelling of two classes or of two
    labels differs.
    """
    present = [cell.text for cell in cells if not is_missing(cell.text, model_labels)]
    if not present:
        return None
    if len(model_labels) == 1:
        return () if all(map(is_number, present)) else None
    if set(present) <= set(model_labels):
        return tuple(model_labels) if len(set(model_labels)) == len(model_labels) else None
    spelling = {comparable_name(text): text for text in present}
    model_names = [comparable_name(label) for label in model_labels]
    has_two_spellings = len(spelling) < len(set(present)) or len(set(model_names)) < len(model_names)
    if has_two_spellings or not set(spelling) <= set(model_names):
        return None
    return tuple(spelling.get(name, label) for name, label in zip(model_names, model_labels, strict=True))


def _without_missing(cells: Sequence[LabelCell], settings: TableSettings) -> list[LabelCell]:
    """Return the labels without missing values; raises `InputError` for the first one unless `table.missing = "skip"`.

    Without "skip" a label such as "-" or "NA" counts as a class, except if all other labels are numbers.
    """
    present = [cell for cell in cells if not is_missing(cell.text)]
    if settings.missing == "skip":
        return present
    are_numbers = bool(present) and all(_is_number_with_comma(cell.text) for cell in present)
    for cell in cells:
        if is_missing(cell.text, ambiguous=are_numbers):
            raise missing_label(cell)
    return list(cells)


def _are_values(cells: Sequence[LabelCell]) -> bool:
    """Return True if all labels are numbers and at least one has a fraction, False if none has a fraction.

    Raises `InputError` if some labels have fractions and others are no numbers, and if all are numbers, but some have a
    comma, a unit or thousands separators.
    """
    as_classes = "-s table.kind=classification"
    with_comma = [cell for cell in cells if re.fullmatch(r"[+-]?\d+,\d+", cell.text)]
    if with_comma and all(_is_number_with_comma(cell.text) for cell in cells):
        message = f"{with_comma[0].where}: the label {with_comma[0].text!r} is a number with a comma"
        remedies = "use -s 'table.decimal=\",\"' for decimal commas, remove thousands separators"
        raise InputError(message, f"{remedies}, or use {as_classes}")
    has_fractions = any(is_number(cell.text) and float(cell.text) % 1 != 0 for cell in cells)
    not_numbers = [cell for cell in cells if not is_number(cell.text)]
    if not not_numbers:
        return has_fractions
    first = not_numbers[0]
    if has_fractions:
        message = f"{first.where}: the label {first.text!r} is not a number, but others have fractions"
        raise InputError(message, f"correct it, remove the row, or use {as_classes}")
    if all(_NUMBER_WITH_UNIT.fullmatch(cell.text) for cell in not_numbers):
        message = f"{first.where}: the label {first.text!r} is a number with other characters"
        raise InputError(message, f"write plain numbers such as 1234.5, or use {as_classes}")
    return False


def _reject_json(cell: LabelCell) -> None:
    """Raise `InputError` for a label that begins like a JSON list or object and is one."""
    try:
        value = json.loads(cell.text)
    except (ValueError, RecursionError):  # ValueError also for an integer of more than 4,300 digits
        return
    kind = "a list" if isinstance(value, list) else "an object"
    raise InputError(f"{cell.where}: the label is {kind}: {cell.text}", "write one class as a text")


def _class_order(label: str) -> tuple[bool, float, str]:
    """Return the sort key of a class: whole numbers come first, by size (2 before 10), then other names."""
    if label.isascii() and label.removeprefix("-").isdigit():
        return False, float(label), label
    return True, 0.0, label
