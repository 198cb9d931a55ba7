"""Open data sets on the Hugging Face Hub as streams of rows, whole or some of their files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, cast

from albert_cli import hub_access
from albert_cli.errors import InputError
from albert_cli.text.source_parts import SourcePart
from albert_cli.text.sources import HubDataset

if TYPE_CHECKING:
    from datasets import IterableDataset

Rows: TypeAlias = Iterable[Mapping[str, object]]


@contextmanager
def translate_hub_errors(name: str) -> Iterator[None]:
    """Raise `InputError` for every error of the library, which has many types for a wrong name or a missing network."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:200] or type(error).__name__
        hint = "check the name, the configuration and the network; local files need none of them"
        raise InputError(f"{name}: cannot be read from the Hub ({reason})", hint) from error


def count_files(name: str) -> int:
    """Return the number of files of a data set, which work units divide among them; reads no text."""
    with translate_hub_errors(name):
        return max(1, int(_load(HubDataset.parse(name)).num_shards))


def open_rows(part: SourcePart) -> Rows:
    """Return the rows of a data set, or of its files `part.start` to `part.end`."""
    name = part.source.name
    rows = _load(HubDataset.parse(name))
    if part.end is None:
        return cast(Rows, rows)
    if part.end > rows.num_shards:
        raise InputError(f"{name}: has {rows.num_shards} files, fewer than when the work was planned", "start again")
    return chain.from_iterable(rows.shard(rows.num_shards, index) for index in range(part.start, part.end))


def _load(dataset: HubDataset) -> IterableDataset:
    from datasets import load_dataset

    hub_access.prefer_offline()
    return load_dataset(dataset.name, dataset.config or None, split=dataset.split, streaming=True)
