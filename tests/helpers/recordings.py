"""Write data sets whose texts have recordings, which only further packages can decode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa


def write_recordings(path: Path, texts: Sequence[str], **columns: Sequence[str]) -> None:
    """Write a Parquet file with the columns `sound`, `clips` and `text`, and further columns of text."""
    import datasets

    sound = {"bytes": b"no recording", "path": None}
    features = datasets.Features({"sound": datasets.Audio(), "clips": datasets.List(datasets.Audio())})
    features |= {name: datasets.Value("string") for name in ("text", *columns)}
    rows = {"sound": [sound] * len(texts), "clips": [[sound]] * len(texts), "text": list(texts), **columns}
    table = pa.Table.from_pydict(rows, schema=datasets.Features(features).arrow_schema)
    datasets.Dataset(table).to_parquet(path)
