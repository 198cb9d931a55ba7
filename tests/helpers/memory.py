"""Limit the memory that a part of a test may take."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def memory_below(n_bytes: float) -> Iterator[None]:
    """Check that the peak of Python's memory in the block is below `n_bytes`."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < n_bytes
    finally:
        tracemalloc.stop()
