from __future__ import annotations

from pathlib import Path

import pytest

from albert_cli import store
from albert_cli.errors import BusyError
from albert_cli.training.pretrain_recipe import PretrainRecipe
from albert_cli.training.run import load_saved_recipe


def test_load_saved_recipe_never_ignores_a_lock(tmp_path: Path) -> None:
    with store.lock(tmp_path):
        (tmp_path / ".rename.1.tmp").mkdir()  # `store.lock` creates such a folder for an instant
        assert load_saved_recipe(tmp_path, "never", PretrainRecipe) is None
    (tmp_path / "notes.txt").touch()
    with pytest.raises(BusyError, match="is not empty"):
        load_saved_recipe(tmp_path, "never", PretrainRecipe)
