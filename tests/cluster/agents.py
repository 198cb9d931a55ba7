"""Nodes of a pretraining run that a test can kill: each is a `torchrun` agent with one worker on this machine.

A scheduler restarts an agent that has failed; so does `Nodes.restart_failed`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from albert_cli import store
from tests.helpers.processes import PATIENCE, free_port

# One second between keep-alive messages (by default 5), eight of which may be missing (by default 3).
_RENDEZVOUS = "keep_alive_interval=1,keep_alive_max_attempt=8"
_SECONDS_BEFORE_RESTART = 2.0


@dataclass
class Nodes:
    """The nodes of a run.

    minimum: the smallest number of nodes with which the run continues; late_seconds: how long these wait for the other
    nodes; restarts: the number of restarted agents.
    """

    folder: Path
    command: Sequence[str]  # `pretrain RECIPE …`, without --out
    names: Sequence[str]
    minimum: int
    late_seconds: int = 5
    port: str = field(default_factory=free_port)
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    restarts: int = 0

    @property
    def run(self) -> Path:
        """The run's directory."""
        return self.folder / "run"

    def start_all(self) -> None:
        """Start the agents, of which the first one serves the rendezvous, and wait until each has a worker."""
        for name in self.names:
            self.start(name)
        for name in self.names:
            self._worker(name)

    def start(self, name: str) -> None:
        """Start an agent."""
        environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        is_host = str(name == self.names[0]).lower()  # the other agents wait until the first one serves the rendezvous
        rendezvous = f"{_RENDEZVOUS},last_call_timeout={self.late_seconds},is_host={is_host}"
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", f"{self.minimum}:{len(self.names)}"),
            *("--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-id", "run"),
            *("--rdzv-endpoint", f"localhost:{self.port}", "--rdzv-conf", rendezvous),
            *("-m", "albert_cli", *self.command, "--out", str(self.run)),
        ]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.agents[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def kill_worker(self, name: str) -> None:
        """Kill the worker of an agent."""
        with suppress(ProcessLookupError):
            os.kill(self._worker(name), signal.SIGKILL)

    def kill_agent(self, name: str) -> None:
        """Kill an agent, but not its worker."""
        self.agents[name].kill()
        self.agents[name].wait()

    def kill_node(self, name: str) -> None:
        """Kill an agent and its worker for good."""
        worker = self._worker(name)
        agent = self.agents.pop(name)
        agent.kill()
        agent.wait()
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)

    def _worker(self, name: str) -> int:
        """Return the process id of an agent's worker; an agent that joined late may not have started it yet."""
        agent = self.agents[name].pid
        children = Path(f"/proc/{agent}/task/{agent}/children")
        pids: list[str] = []

        def has_worker() -> bool:
            pids[:] = children.read_text().split()
            return bool(pids)

        self.wait(has_worker)
        return int(pids[0])

    def restart_failed(self) -> bool:
        """Restart the agents that have failed, after a pause; return True if all agents have succeeded."""
        for name, agent in list(self.agents.items()):
            if agent.poll():
                time.sleep(_SECONDS_BEFORE_RESTART)
                self.restarts += 1
                self.start(name)
        return all(agent.poll() == 0 for agent in self.agents.values())

    def last_step(self) -> int:
        """Return the last step that the run has saved, 0 without one."""
        steps = store.saved_steps(self.run)
        return store.step_number(steps[-1]) if steps else 0

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def logs(self) -> str:
        """Return all that the agents and the workers have printed."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))

    def stop(self) -> None:
        """Kill the agents; their workers then exit."""
        for agent in self.agents.values():
            agent.kill()
            agent.wait()


@dataclass(frozen=True)
class Loss:
    """A loss: its name, a function that kills a process of the nodes, and whether a node is lost for good."""

    name: str
    inflict: Callable[[Nodes], None]
    is_for_good: bool = False


AN_AGENT = Loss("an agent", lambda nodes: nodes.kill_agent(nodes.names[-1]))
A_NODE_FOR_GOOD = Loss("a node for good", lambda nodes: nodes.kill_node(nodes.names[-1]), is_for_good=True)
LOSSES = (
    Loss("nothing", lambda nodes: None),
    Loss("a worker", lambda nodes: nodes.kill_worker(nodes.names[-1])),
    AN_AGENT,
    Loss("the rendezvous agent", lambda nodes: nodes.kill_agent(nodes.names[0])),
    A_NODE_FOR_GOOD,
)


def survive(nodes: Nodes, loss: Loss, step: int) -> None:
    """Start the nodes, inflict a loss when they have saved `step` or a later one, and wait for the end of the run."""
    try:
        nodes.start_all()
        alone = nodes.last_step()  # saved by a node that began before a late one joined, which restarts the workers
        nodes.wait(lambda: nodes.last_step() > max(alone, step - 1))
        loss.inflict(nodes)
        nodes.wait(nodes.restart_failed)
    finally:
        nodes.stop()
