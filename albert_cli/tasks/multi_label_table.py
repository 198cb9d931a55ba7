"""Read the labels of a multi-label table, in which a row may have several classes.

The table has one of three layouts:

* a column of lists, such as `["a", "b"]`
* a column of classes separated by `|`, such as `a|b`
* a column of 0 and 1 for each class
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Sequence
from typing import NamedTuple

from albert_cli.errors import InputError
from albert_cli.tasks.columns import find_named_columns, require_label_column
from albert_cli.tasks.data_files import cell_text
from albert_cli.tasks.label_cells import LabelCell, are_hidden, is_missing
from albert_cli.tasks.label_names import find_label
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.text_table import TextTable

_SEPARATOR = "|"
_YES = frozenset(("1", "1.0", "true", "yes"))
_NO = frozenset(("0", "0.0", "false", "no", ""))
_NUMPY_NUMBERS = re.compile(r"\[\s*\d+(?:\s+\d+)+\s*\]")


class LabelSet(NamedTuple):
    """The names of a row's classes, and its file and line; `missing` is the label if it is a missing value."""

    names: tuple[str, ...]
    where: str
    missing: LabelCell | None = None


def is_multi_label_table(table: TextTable, settings: TableSettings) -> bool:
    """Return True if the settings request a multi-label table, or if a label is a list or contains `|`."""
    if settings.kind != "auto":
        return settings.kind == "multi-label"
    if settings.label_columns:
        return True
    column = require_label_column(table, settings)
    return any(row[column].lstrip().startswith("[") or _SEPARATOR in row[column] for row in table.cells)


def read_label_sets(table: TextTable, settings: TableSettings, classes: Sequence[str]) -> list[LabelSet]:
    """Return the classes of every row; raises `InputError` naming the line of a label that cannot be read.

    An empty label means no class. Other spellings of a missing value are missing labels, unless they are in `classes`;
    "none", "NA" and similar ones are missing labels only if `table.missing` is "skip". All labels are missing if they
    are hidden (`are_hidden`).
    """
    if settings.label_columns:
        return _read_label_columns(table, settings)
    column = require_label_column(table, settings)
    cells = [LabelCell(_add_commas(row[column].strip()), table.where(index)) for index, row in enumerate(table.cells)]
    _reject_vectors(cells)
    label_sets = []
    for cell in cells:
        if cell.text and is_missing(cell.text, classes, ambiguous=settings.missing == "skip"):
            label_sets.append(LabelSet((), cell.where, missing=cell))
        else:
            label_sets.append(LabelSet(_split_classes(cell.text, cell.where), cell.where))
    single_names = [row.names[0] for row in label_sets if len(row.names) == 1]
    if len(single_names) == len(label_sets) and are_hidden(single_names, classes):
        return [LabelSet((), row.where, missing=LabelCell(row.names[0], row.where)) for row in label_sets]
    return label_sets


def _read_label_columns(table: TextTable, settings: TableSettings) -> list[LabelSet]:
    """Return the classes of every row from a column of 0 and 1 for each class; other cells raise `InputError`.

    A row with -1 in all of these columns has a missing label.
    """
    columns = find_named_columns(table, "label_columns", settings.label_columns)
    label_sets = []
    for index, row in enumerate(table.cells):
        if are_hidden([row[column].strip() for column in columns]):
            hidden = LabelCell(row[columns[0]].strip(), table.where(index))
            label_sets.append(LabelSet((), hidden.where, missing=hidden))
            continue
        names = []
        for name, column in zip(settings.label_columns, columns, strict=True):
            value = row[column].strip().lower()
            if value not in _YES | _NO:
                message = f"{table.where(index)}: {row[column]!r} in the column {name!r} is neither 0 nor 1"
                raise InputError(message, "write 1 for texts that have the class, 0 for others")
            if value in _YES:
                names.append(name)
        label_sets.append(LabelSet(tuple(names), table.where(index)))
    return label_sets


def _add_commas(cell: str) -> str:
    """Return a NumPy array of whole numbers, such as `[1 2]`, with commas between them; any other cell is unchanged."""
    return re.sub(r"(?<=\d)\s+(?=\d)", ", ", cell) if _NUMPY_NUMBERS.fullmatch(cell) else cell


def _reject_vectors(cells: Sequence[LabelCell]) -> None:
    """Raise `InputError` if the labels are vectors with a number for each class, 0 or 1, instead of lists of classes.

    The classes "0" and "1" are accepted if the lists differ in length, or if all lists are the same and repeat no item.
    """
    labeled = [cell for cell in cells if not is_missing(cell.text)]
    vectors = [_parse_vector(cell.text) for cell in labeled]
    lengths = {len(vector) for vector in vectors}
    repeats_item = any(len(set(vector)) < len(vector) for vector in vectors)
    are_different = len(set(map(tuple, vectors))) > 1
    if len(lengths) == 1 and min(lengths) > 1 and (repeats_item or are_different):
        message = f"{labeled[0].where}: the label {labeled[0].text!r} looks like a vector of 0 and 1"
        hint = "write the names of the classes, or a column for each class and use -s table.label_columns=[…]"
        raise InputError(message, hint)


def _parse_vector(cell: str) -> list[int]:
    """Return a JSON list of 0, 1, true and false as numbers; [] for anything else."""
    try:
        values = json.loads(cell.lower())  # pandas writes True and False into a CSV file
    except (ValueError, RecursionError):
        return []
    is_vector = isinstance(values, list) and all(isinstance(value, int | float) and value in (0, 1) for value in values)
    return [int(value) for value in values] if is_vector else []


def _split_classes(cell: str, where: str) -> tuple[str, ...]:
    """Return the classes in a JSON or Python list, or in a text with `|` between them.

    Repetitions and empty names are left out. Raises `InputError` for a list that cannot be read, or holds other values
    than texts and whole numbers.
    """
    if cell.startswith("["):
        values = _parse_list(cell)
        if values is None:
            hint = 'write ["…", "…"], or [] for no class; for named entities, use the task ner'
            raise InputError(f"{where}: the label {cell!r} is not a list of texts", hint)
        names = [value.strip() for value in values]
    else:
        names = [name.strip() for name in cell.split(_SEPARATOR)]
    return tuple(dict.fromkeys(name for name in names if name))


def _parse_list(cell: str) -> list[str] | None:
    """Return the texts and whole numbers of a JSON list, or of a Python list or array as pandas writes it into CSV.

    Returns None for anything else.
    """
    for parse in (json.loads, _parse_python_list):
        try:
            values = parse(cell)
            # The type is compared, because True and False are instances of int.
            if isinstance(values, list) and all(type(value) in (str, int) for value in values):
                return [cell_text(value) for value in values]
        except (ValueError, TypeError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError):
            pass  # `json` raises ValueError for an integer of more than 4,300 digits
    return None


def _parse_python_list(cell: str) -> object:
    """Return the value of a Python literal in which commas between texts may be missing, as in NumPy's `['a' 'b']`.

    Python itself joins such texts: `ab`. Raises the errors of `ast.literal_eval`, and `ValueError` for texts without a
    blank between them, such as 'it''s', which is neither one text nor two.
    """
    ast.literal_eval(cell)  # rejects what is no literal, which `tokenize` may accept
    items: list[str] = []
    text_end = None
    for token in tokenize.generate_tokens(io.StringIO(cell).readline):
        if token.type == tokenize.NL:  # NumPy writes a long array in several lines
            continue
        is_text = token.type == tokenize.STRING
        if is_text and token.start == text_end:
            raise ValueError("texts without a blank or a comma between them")
        items += [",", token.string] if is_text and text_end else [token.string]
        text_end = token.end if is_text else None
    value: object = ast.literal_eval(" ".join(items))
    return value


def infer_label_names(label_sets: Sequence[LabelSet], settings: TableSettings, origin: str) -> tuple[str, ...]:
    """Return all classes: the settings' `labels` or `label_columns`, or else the classes that occur, sorted.

    Raises `InputError` for fewer than two classes.
    """
    if settings.labels:  # `TableSettings` has checked that they are two classes or more
        return settings.labels
    names = settings.label_columns
    if not names:
        names = tuple(sorted({name for label_set in label_sets for name in label_set.names}))
    if len(names) < 2:
        raise InputError(
            f"{origin}: fewer than two classes, so there is nothing to learn", "provide two classes or more"
        )
    return names


def label_indices(label_set: LabelSet, labels: Sequence[str]) -> tuple[int, ...]:
    """Return the ascending indices of a row's classes in `labels`; raises `InputError` for a class not in `labels`."""
    indices = set()
    for name in label_set.names:
        index = find_label(name, labels)
        if index is None:
            message = f"{label_set.where}: label {name!r} is not one of {', '.join(labels)}"
            raise InputError(message, "correct the label, or remove the row")
        indices.add(index)
    return tuple(sorted(indices))
