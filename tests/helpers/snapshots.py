"""Compare a printed table or page with the text that a file next to the test stores."""

from __future__ import annotations

import os
from pathlib import Path

UPDATE = "UPDATE_SNAPSHOTS"  # environment variable: with the value 1, tests store what the program prints now


def stored_text(path: Path, text: str) -> str:
    """Return the stored text that `text` must equal; with UPDATE_SNAPSHOTS=1, store `text` first."""
    if os.environ.get(UPDATE) == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")
