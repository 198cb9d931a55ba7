"""What all tests share: the real data where they are, and a small corpus of our own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# One thread a process: the tests' matrices are tiny, and pytest-xdist uses the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora, GLUE and SQuAD; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("ALBERT_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set ALBERT_TEST_DATA to the folder that holds corpus/ and glue/")
    return folder
