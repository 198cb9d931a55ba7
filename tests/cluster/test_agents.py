"""Pretraining under two `torchrun` agents, as on two nodes: a lost node does not change the weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.agents import A_NODE_FOR_GOOD, Nodes, survive
from tests.helpers.command import albert
from tests.helpers.tiny_recipe import RECIPE

STEPS = 200
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no /proc to find workers in"),
]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory, tiny_data: Path) -> list[str]:
    """The command of a run that saves every 20 steps."""
    recipe = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    recipe.write_text(RECIPE)
    settings = [f"schedule.total_steps={STEPS}", "train.save_every=20", "train.eval_every=0", "train.log_every=50"]
    settings.append("model.num_hidden_layers=1")
    overrides = [word for setting in settings for word in ("-s", setting)]
    return ["pretrain", str(recipe), "--data", str(tiny_data), "--device", "cpu", *overrides]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, command: list[str]) -> Path:
    """The last checkpoint of one undisturbed process."""
    out = tmp_path_factory.mktemp("whole") / "run"
    albert(*command, "--out", out, "--quiet", "-s", "train.save_every=0")
    return out / f"step-{STEPS:08d}"


# `python -m tests.campaigns.agents` also tests the other losses, and four nodes.
def test_run_survives_the_loss_of_a_node(command: list[str], expected: Path, tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, command, ["a", "b"], minimum=1, late_seconds=10)
    survive(nodes, A_NODE_FOR_GOOD, step=20)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (nodes.run / expected.name / name).read_bytes() == (expected / name).read_bytes(), nodes.logs()
    assert nodes.restarts == 0, nodes.logs()
    assert "resuming from step" in nodes.logs()
