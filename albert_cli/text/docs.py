"""Installed documentation (being written)."""

from collections.abc import Iterator


def read_docs(stdlib_only: bool = False) -> Iterator[tuple[str, str]]:
    """Nothing yet."""
    yield from ()
