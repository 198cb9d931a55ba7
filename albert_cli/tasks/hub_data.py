"""Read data sets of the Hugging Face Hub as tables, through `datasets`, which is imported late: it is slow to load.

A data set is named `hf:NAME[:CONFIG]`, for example `hf:nyu-mll/glue:rte`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeGuard

from albert_cli import hub_access
from albert_cli.errors import InputError, MissingDataError
from albert_cli.formatting import first_line
from albert_cli.tasks.data_files import table_from_objects
from albert_cli.tasks.text_table import TextTable
from albert_cli.text.records import name_classes


def is_hub_source(source: str | None) -> TypeGuard[str]:
    """Return True for the name of a data set of the Hub, and False for a path and for None."""
    return source is not None and source.startswith("hf:")


def has_hub_layout(folder: Path) -> bool:
    """Return True for a local copy of a data set of the Hub: Parquet files such as `data/train-00000-of-00001.parquet`.

    `hf:FOLDER` reads such a copy.
    """
    return any(any(path.glob("*-?????-of-?????*.parquet")) for path in (folder, folder / "data"))


def reject_saved_to_disk(folder: Path) -> None:
    """Raise `InputError` for a folder that `save_to_disk` of `datasets` wrote, which `load_dataset` cannot read."""
    is_dict = (folder / "dataset_dict.json").is_file()
    if is_dict or (folder / "state.json").is_file():
        split = "['train']" if is_dict else ""
        remedy = f"load_from_disk({str(folder)!r}){split}.to_parquet('train.parquet')"
        raise InputError(f"{folder}: was written by save_to_disk", f"write Parquet files: datasets.{remedy}")


def list_hub_splits(source: str) -> tuple[str, ...]:
    """Return the names of a data set's splits; raises `MissingDataError` if the data set cannot be loaded."""
    hub_access.prefer_offline()
    import datasets

    name, _, config = source.removeprefix("hf:").partition(":")
    reject_saved_to_disk(Path(name))
    try:
        return tuple(datasets.get_dataset_split_names(name, config or None))
    except Exception as error:
        raise _hub_error(source, error) from None


def read_hub_split(source: str, split: str, labels: Sequence[str] = ()) -> TextTable:
    """Read a split of a data set as a table; in columns of class numbers, the numbers become names (`name_classes`).

    The names are those of the data set. But if `labels`, the classes of the task, are not empty and lack one of a
    column's names, the column keeps its numbers. Hidden labels become empty cells, and -1 in lists. Columns of images,
    audio and video are left out. Raises `MissingDataError` if the split cannot be loaded.
    """
    hub_access.prefer_offline()
    import datasets

    name, _, config = source.removeprefix("hf:").partition(":")
    reject_saved_to_disk(Path(name))
    origin = ":".join(part for part in ("hf", name, config, split) if part)
    datasets.disable_progress_bars()
    try:
        dataset = hub_access.drop_media(datasets.load_dataset(name, config or None, split=split))
    except Exception as error:
        raise _hub_error(origin, error) from None
    columns = {column: dataset[column][:] for column in dataset.column_names}  # [:] reads a column into a list
    for column, feature in dataset.features.items():
        item = getattr(feature, "feature", feature)  # the feature of a list's items
        if isinstance(item, datasets.ClassLabel):
            has_numbers = bool(labels) and not set(item.names) <= set(labels)
            names = [str(number) for number in range(len(item.names))] if has_numbers else item.names
            columns[column] = [name_classes(value, names) for value in columns[column]]
    rows = zip(*columns.values(), strict=True)
    objects = (dict(zip(columns, row, strict=True)) for row in rows)
    return table_from_objects(origin, enumerate(objects, start=1))


def _hub_error(origin: str, error: Exception) -> MissingDataError:
    """Return the error for a data set that cannot be loaded."""
    # `datasets` passes on the exceptions of many libraries. The first line of a long message has the reason.
    return MissingDataError(f"{origin}: cannot be loaded: {first_line(error)}", "use --data DIR for a local copy")
