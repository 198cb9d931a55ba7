"""Tests of `albert_cli.quickstart.bundled`: the task has balanced classes, hidden names, and splits by module."""

from __future__ import annotations

from pathlib import Path

import pytest

from albert_cli.errors import BusyError
from albert_cli.quickstart import bundled
from albert_cli.quickstart.bundled import BundledDataSettings, build_task_tables, load_or_write_bundled
from albert_cli.text.corpus import Document
from tests.helpers.command import snapshot


def make_document(name: str, module: int) -> Document:
    called = "np.array" if name == "numpy" and module % 2 else f"{name}.tensor"
    number = module + 100 * (name == "torch")  # no sentence occurs twice
    text = " ".join(f"Module of number {number} has {called} as its {i} example." for i in range(3))
    return Document(text, f"{name}.m{module}")


def test_task_tables_are_balanced_and_hide_names() -> None:
    names = ["numpy", "torch"]
    settings = BundledDataSettings("docs:stdlib", packages=2, heldout=0.5, train_sentences=30, test_sentences=20)
    modules = [make_document(name, i) for name in names for i in range(40)]
    tables = build_task_tables(modules, names, settings)
    assert {split: len(rows) for split, rows in tables.items()} == {"train": 30, "dev": 20}
    for rows in tables.values():
        labels = [label for _, label in rows]
        assert labels.count("numpy") == labels.count("torch")
        assert not any(name in text for text, _ in rows for name in ("numpy", "torch", "np."))
    modules_by_split = {split: {text.split()[3] for text, _ in rows} for split, rows in tables.items()}
    assert not modules_by_split["train"] & modules_by_split["dev"]


def test_deleted_bundled_file_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = BundledDataSettings("docs:stdlib", packages=2, heldout=0.5, train_sentences=30, test_sentences=20)
    modules = [make_document(name, i) for name in ("numpy", "torch") for i in range(40)]
    monkeypatch.setattr(bundled, "read_documents", lambda _: modules)
    facts = load_or_write_bundled(tmp_path, settings)
    written = snapshot(tmp_path)
    for name in ("corpus.jsonl", "task/train.csv", "task/dev.csv"):
        (tmp_path / name).unlink()
        assert load_or_write_bundled(tmp_path, settings) == facts
        assert snapshot(tmp_path) == written
    modules.pop()
    assert load_or_write_bundled(tmp_path, settings) == facts
    (tmp_path / "task" / "dev.csv").unlink()
    with pytest.raises(BusyError, match=r"dev\.csv: was deleted, and the installed documentation"):
        load_or_write_bundled(tmp_path, settings)
    assert not (tmp_path / "task" / "dev.csv").exists()
