"""Open data sets on the Hugging Face Hub as streams of rows, from all files of a data set or from some of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, cast

from albert_cli import hub_access
from albert_cli.errors import AlbertError, InputError, NetworkError
from albert_cli.text.remote_files import describe_cause, is_network_failure
from albert_cli.text.source_parts import SourcePart
from albert_cli.text.sources import HubDataset

if TYPE_CHECKING:
    from datasets import IterableDataset

Rows: TypeAlias = Iterable[Mapping[str, object]]


@contextmanager
def translate_hub_errors(name: str) -> Iterator[None]:
    """Raise `NetworkError` for each failure of the network in the block, and `InputError` for each other error.

    The errors of `datasets` have no common class.
    """
    try:
        yield
    except AlbertError:
        raise
    except Exception as error:
        if is_network_failure(error) and not hub_access.IS_OFFLINE_BY_CHOICE:
            raise NetworkError(f"{name}: cannot be read from the Hub now ({describe_cause(error)})") from error
        hint = "check the name, the configuration and the network, or use local files"
        raise InputError(f"{name}: cannot be read from the Hub ({describe_cause(error)})", hint) from error


def count_files(name: str) -> int:
    """Return the number of a data set's files, without reading any text."""
    with translate_hub_errors(name):
        n_files = int(_load(HubDataset.parse(name)).num_shards)  # `datasets` calls a file a shard
    return max(1, n_files)  # a data set without files counts as one, so that it is opened and not skipped


def open_rows(part: SourcePart) -> Rows:
    """Return the rows of a data set's files `part.start` to `part.end` - 1, or of all files if `part.end` is None."""
    name = part.source.name
    rows = _load(HubDataset.parse(name))
    if part.end is None:
        return cast(Rows, rows)
    n_files = rows.num_shards
    if part.end > n_files:
        message = f"{name}: has {n_files} files, fewer than when the work was planned"
        raise InputError(message, "run the command again with another --out")
    return chain.from_iterable(rows.shard(n_files, index) for index in range(part.start, part.end))


def _load(dataset: HubDataset) -> IterableDataset:
    """Return a data set as a stream of rows without images, audio and video, without downloading its files."""
    hub_access.prefer_offline()
    from datasets import config, load_dataset

    # Otherwise `datasets` imports torch, which takes 3 s in each process, to support torch's data loaders. The setting
    # stays for the whole process: its data sets are no `torch.utils.data.IterableDataset`.
    config.TORCH_AVAILABLE = False
    rows = load_dataset(dataset.name, dataset.config or None, split=dataset.split, streaming=True)
    return cast("IterableDataset", hub_access.drop_media(rows))
