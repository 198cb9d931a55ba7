"""Data sets of the Hugging Face Hub as rows, through `datasets`, which is imported late."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from albert_cli import network
from albert_cli.errors import MissingData
from albert_cli.tasks.rows import Rows, as_text


def is_hub(source: str | None) -> bool:
    """Whether a source names a data set of the Hub: `hf:NAME[:CONFIG]`."""
    return source is not None and source.startswith("hf:")


def _import_datasets() -> ModuleType:
    network.prefer_offline()
    import datasets

    module: ModuleType = datasets
    return module


def hub_splits(source: str) -> tuple[str, ...]:
    """The names of the splits of `hf:NAME[:CONFIG]`."""
    datasets = _import_datasets()
    name, _, config = source.removeprefix("hf:").partition(":")
    try:
        return tuple(datasets.get_dataset_split_names(name, config or None))
    except Exception as error:
        raise _unreachable(source, error) from None


def _unreachable(origin: str, error: Exception) -> MissingData:
    # The library raises whatever its network and file layers raise; the first line says what matters.
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return MissingData(f"{origin}: cannot be loaded: {reason}", "name a local copy by --data DIR")


def read_hub(source: str, split: str) -> Rows:
    """A split of `hf:NAME[:CONFIG]` through `datasets`.

    Class indices are written as class names, hidden ones (-1) as empty cells. Raises `MissingData` with one
    line when the Hub, the data set, its configuration or the split cannot be reached.
    """
    datasets = _import_datasets()
    name, _, config = source.removeprefix("hf:").partition(":")
    origin = ":".join(part for part in ("hf", name, config, split) if part)
    datasets.disable_progress_bars()
    try:
        table: Any = datasets.load_dataset(name, config or None, split=split)
    except Exception as error:
        raise _unreachable(origin, error) from None
    names = {c: tuple(f.names) for c, f in table.features.items() if isinstance(f, datasets.ClassLabel)}
    columns = tuple(table.column_names)
    by_column: list[list[str]] = []
    for column in columns:
        values = table[column][:]
        known = names.get(column)
        if known is not None:
            by_column.append(["" if v is None or v < 0 else known[v] for v in values])
        else:
            by_column.append([as_text(v) for v in values])
    cells = [list(row) for row in zip(*by_column, strict=True)]
    return Rows(origin, columns, cells, list(range(1, len(cells) + 1)), names)
