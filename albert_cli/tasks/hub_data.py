"""Read data sets of the Hugging Face Hub through `datasets`, which is imported late because it is slow to load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from albert_cli import hub_access
from albert_cli.errors import MissingDataError
from albert_cli.formatting import first_line
from albert_cli.tasks.data_files import table_from_objects
from albert_cli.tasks.text_table import TextTable


def is_hub_source(source: str | None) -> bool:
    """Return True for a data set of the Hub, `hf:NAME[:CONFIG]`."""
    return source is not None and source.startswith("hf:")


def list_hub_splits(source: str) -> tuple[str, ...]:
    """Return the names of the splits of `hf:NAME[:CONFIG]`."""
    hub_access.prefer_offline()
    import datasets

    name, _, config = source.removeprefix("hf:").partition(":")
    try:
        return tuple(datasets.get_dataset_split_names(name, config or None))
    except Exception as error:
        raise _hub_error(source, error) from None


def read_hub_split(source: str, split: str, labels: Sequence[str] = ()) -> TextTable:
    """Read a split of `hf:NAME[:CONFIG]`. Classes become their names and hidden labels (-1) empty cells.

    If the data set's class names are not among `labels`, classes become their numbers. Raises `MissingDataError` if
    the Hub, the data set, its configuration or the split cannot be reached.
    """
    hub_access.prefer_offline()
    import datasets

    name, _, config = source.removeprefix("hf:").partition(":")
    origin = ":".join(part for part in ("hf", name, config, split) if part)
    datasets.disable_progress_bars()
    try:
        dataset: Any = datasets.load_dataset(name, config or None, split=split)
    except Exception as error:
        raise _hub_error(origin, error) from None
    columns = {column: dataset[column][:] for column in dataset.column_names}
    for column, kind in dataset.features.items():
        if isinstance(kind, datasets.ClassLabel):
            columns[column] = _class_names(columns[column], kind.names, labels)
    objects = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return table_from_objects(origin, enumerate(objects, start=1))


def _class_names(numbers: Sequence[int | None], names: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return class numbers as the names that the task uses: the data set's or the numbers themselves."""
    if labels and not set(names) <= set(labels):
        names = [str(number) for number in range(len(names))]
    return ["" if number is None or number < 0 else names[number] for number in numbers]


def _hub_error(origin: str, error: Exception) -> MissingDataError:
    # The library passes on what its network and file layers raise; the first line holds the reason.
    return MissingDataError(f"{origin}: cannot be loaded: {first_line(error)}", "use --data DIR for a local copy")
