"""Pretraining under two torchrun agents, as on two nodes: a lost worker or agent costs no failed restart."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from albert_cli import store
from tests.helpers.processes import free_port
from tests.helpers.tiny_recipe import RECIPE

STEPS = 400
SETTINGS = [f"schedule.total_steps={STEPS}", "train.save_every=50", "train.eval_every=0", "train.log_every=50"]
pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no /proc to find workers in")


@dataclass
class Nodes:
    """The agents of a run, each a process of torchrun with one worker."""

    folder: Path
    data: Path
    port: str = field(default_factory=free_port)
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Start an agent."""
        environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        overrides = [word for setting in SETTINGS for word in ("-s", setting)]
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
            *("--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{self.port}"),
            *("--rdzv-id", "run", "-m", "albert_cli", "pretrain", str(self.folder / "tiny.toml")),
            *("--data", str(self.data), "--out", str(self.run), "--device", "cpu", *overrides),
        ]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.agents[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    @property
    def run(self) -> Path:
        """The run's directory."""
        return self.folder / "run"

    def worker(self, name: str) -> int:
        """Return the process of an agent's worker."""
        agent = self.agents[name].pid
        (child,) = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
        return int(child)

    def is_rendezvous_open(self) -> bool:
        """Return True if the first agent serves the rendezvous."""
        with socket.socket() as connection:
            return connection.connect_ex(("localhost", int(self.port))) == 0

    def wait_for_step(self, step: int) -> None:
        """Wait until the run has saved a step."""
        self.wait(lambda: any(int(path.name.removeprefix("step-")) >= step for path in store.saved_steps(self.run)))

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds."""
        deadline = time.monotonic() + 240
        while not condition():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def wait_for_end(self) -> None:
        """Wait until all agents have ended well."""
        self.wait(lambda: all(agent.poll() is not None for agent in self.agents.values()))
        assert [agent.returncode for agent in self.agents.values()] == [0] * len(self.agents), self.logs()

    def logs(self) -> str:
        """Return all that the agents and the workers have printed."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))


@pytest.fixture
def nodes(tmp_path: Path, tiny_data: Path) -> Iterator[Nodes]:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    nodes = Nodes(tmp_path, tiny_data)
    nodes.start("a")
    nodes.wait(nodes.is_rendezvous_open)  # agent a serves the rendezvous
    nodes.start("b")
    yield nodes
    for agent in nodes.agents.values():
        agent.kill()
        agent.wait()


def test_killed_worker_is_restarted_on_both_nodes(nodes: Nodes) -> None:
    nodes.wait_for_step(100)
    os.kill(nodes.worker("b"), signal.SIGKILL)
    nodes.wait_for_end()
    assert store.read_json(nodes.run / "status.json")["step"] == STEPS


def test_killed_agent_that_comes_back_joins_again(nodes: Nodes) -> None:
    nodes.wait_for_step(100)
    nodes.agents["b"].kill()
    nodes.agents["b"].wait()
    time.sleep(2)
    nodes.start("b")
    nodes.wait_for_end()
    assert store.read_json(nodes.run / "status.json")["step"] == STEPS
    assert nodes.logs().count("lost the connection") <= 1, nodes.logs()
