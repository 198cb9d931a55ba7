"""Pretrain on two and four nodes that lose a worker, an agent, the rendezvous agent or a node, and print a table.

    python -m tests.campaigns.agents OUT
    python -m tests.campaigns.agents OUT2 --nodes 4

Every node is a `torchrun` agent with one worker on this machine (gloo). The last column compares the weights and the
moments of the last step with those of one undisturbed process.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from pathlib import Path

from albert_cli.console import format_table
from tests.campaigns.world import SYLLABLES
from tests.cluster.agents import LOSSES, Loss, Nodes, survive
from tests.helpers.tiny_recipe import RECIPE

STEPS = 400
KILL_AFTER_STEP = 100
SETTINGS = (f"schedule.total_steps={STEPS}", "train.save_every=50", "train.eval_every=0", "train.log_every=50")


def albert(*arguments: object) -> None:
    """Run `albert ARGUMENTS` in a new process."""
    command = [sys.executable, "-m", "albert_cli", *map(str, arguments), "--quiet"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def prepare(out: Path) -> list[str]:
    """Write text, vocabulary, data and a recipe; return the command that pretrains with them."""
    out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(5)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(300)]
    sentences = [" ".join(rng.choices(words, k=rng.randint(3, 12))) + "." for _ in range(3000)]
    (out / "text.txt").write_text("\n\n".join(" ".join(sentences[n : n + 5]) for n in range(0, 3000, 5)))
    (out / "tiny.toml").write_text(RECIPE)
    albert("vocab", out / "text.txt", "--size", 150, "--out", out / "vocabulary")
    albert("data", out / "text.txt", "--vocab", out / "vocabulary", "--out", out / "data", "--holdout", 0.1)
    overrides = [word for setting in SETTINGS for word in ("-s", setting)]
    return ["pretrain", str(out / "tiny.toml"), "--data", str(out / "data"), "--device", "cpu", *overrides]


def measure(out: Path, command: list[str], count: int, loss: Loss, expected: Path) -> list[object]:
    """Run a case; return its row of the table."""
    folder = out / f"{count}-{loss.name.replace(' ', '-')}"
    folder.mkdir()
    names = [f"node{number}" for number in range(count)]
    nodes = Nodes(folder, command, names, minimum=count - 1 if loss.is_for_good else count)
    start_time = time.monotonic()
    survive(nodes, loss, KILL_AFTER_STEP)
    seconds = time.monotonic() - start_time
    files = ("model.safetensors", "optimizer.safetensors")
    is_same = all((nodes.run / expected.name / name).read_bytes() == (expected / name).read_bytes() for name in files)
    return [count, loss.name, f"{seconds:.0f}", nodes.restarts, "same" if is_same else "DIFFERENT"]


def main() -> None:
    """Run every case and print the table; fail if weights or moments differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.agents", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    options = parser.parse_args()
    command = prepare(options.out)
    albert(*command, "--out", options.out / "whole")
    expected = options.out / "whole" / f"step-{STEPS:08d}"
    rows = [measure(options.out, command, count, loss, expected) for count in options.nodes for loss in LOSSES]
    print(format_table(("nodes", "lost", "seconds", "restarted agents", "weights and moments"), rows))
    assert all(row[-1] == "same" for row in rows), "weights or moments differ"


if __name__ == "__main__":
    main()
