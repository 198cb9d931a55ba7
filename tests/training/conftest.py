from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

RECIPE = """
[model]
embedding_size = 8
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 32
max_position_embeddings = 48
[data]
max_seq_length = 32
[optimizer]
lr = 1e-2
[schedule]
total_steps = 30
[train]
batch_size = 8
micro_batch_size = 4
log_every = 5
eval_every = 15
eval_sequences = 32
save_every = 5
"""


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretraining recipe of 30 steps of a few milliseconds."""
    path = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def command(recipe: Path, tiny_data: Path) -> Sequence[object]:
    """`albert pretrain` of the recipe, but for --out."""
    return ("pretrain", recipe, "--data", tiny_data, "--device", "cpu")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, recipe: Path, tiny_data: Path) -> Path:
    """A run of the recipe that nothing interrupted; not to be changed."""
    from albert_cli.training.pretrain import pretrain

    out = tmp_path_factory.mktemp("run") / "out"
    pretrain(str(recipe), tiny_data, out, device="cpu")
    return out
