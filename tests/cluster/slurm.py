"""A real Slurm of four nodes on this machine, for tests and by hand.

    python -m tests.cluster.slurm DIR

The command prints the variable by which `sbatch` and the other commands find this Slurm, and runs until Ctrl-C. It
needs the packages `slurm-wlm` and `munge`, and changes nothing outside of DIR. The nodes claim to have 64 cores,
256 GiB of memory and eight GPUs each, so that the recipes of `recipes/cluster/` run unchanged.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.helpers.processes import PATIENCE, free_port

NODES = (
    "127.0.0.1",
    "127.0.0.2",
    "127.0.0.3",
    "127.0.0.4",
)  # loopback addresses, because names such as n1 would not resolve
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")
_SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")  # folders of daemons, which PATH may lack
_GPUS = 8
# Without cgroups and a message bus, which containers lack. Short intervals make Slurm notice a dead node soon.
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
ReturnToService=2
JobRequeue=1
MailProg=/bin/true
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
MinJobAge=3600
KillWait=30
SlurmdTimeout=6
"""
_NODE = (
    "NodeName={name} NodeAddr=127.0.0.1 NodeHostname={host} Port={port} "
    "CPUs=64 RealMemory=262144 Gres=gpu:{gpus} State=UNKNOWN\n"
)
_PARTITION = "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
_UNFINISHED = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "SUSPENDED")


def missing_programs() -> list[str]:
    """Return the programs of Slurm that this machine lacks."""
    return [name for name in _PROGRAMS if _locate(name) is None]


def _locate(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM_FOLDERS]))


@dataclass
class Slurm:
    """A running Slurm, whose files are in `folder`."""

    folder: Path
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def configuration(self) -> Path:
        """The configuration file, the value of `SLURM_CONF`."""
        return self.folder / "slurm.conf"

    def start_daemon(self, name: str, *command: str) -> None:
        """Start a daemon in the foreground, with its output in a log file."""
        program = _locate(command[0])
        assert program is not None
        environment = {**os.environ, "SLURM_CONF": str(self.configuration), "SLURMD_NODENAME": name}
        with (self.folder / f"{name}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                [program, *command[1:]], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def start_node(self, name: str) -> None:
        """Start the daemon of a node."""
        self.start_daemon(name, "slurmd", "-D", "-N", name)

    def kill_node(self, name: str) -> None:
        """Kill the daemon of a node and all its processes, as a power failure does, and tell Slurm that it is down.

        Slurm would notice it by itself, but only after `SlurmdTimeout`.
        """
        daemon = self.daemons.pop(name)
        daemon.kill()
        daemon.wait()
        for pid in self._processes(name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.call("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=killed")

    def _processes(self, node: str | None = None) -> list[int]:
        """Return the processes of jobs on one node or on all nodes, found by the variables that Slurm sets."""
        variables = {f"SLURM_CONF={self.configuration}".encode()}
        if node is not None:
            variables.add(f"SLURMD_NODENAME={node}".encode())
        pids = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                environment = set((folder / "environ").read_bytes().split(b"\0"))
                if variables <= environment and int(folder.name) != os.getpid():
                    pids.append(int(folder.name))
        return pids

    def call(self, *command: str, **variables: str) -> str:
        """Run one of Slurm's commands and return what it prints."""
        environment = {**os.environ, **variables, "SLURM_CONF": str(self.configuration)}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
        return result.stdout.strip()

    def states(self, job: str) -> list[str]:
        """Return the states of a job, one for each member of an array."""
        return self.call("squeue", "--noheader", "--states=all", "--array", "--jobs", job, "--format=%T").split()

    def wait(self, condition: Callable[[], bool], log: Path | None = None, interval: float = 0.2) -> None:
        """Check the condition every `interval` seconds until it holds; if it does not, fail with the end of `log`."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                printed = log.read_text(errors="replace")[-4000:] if log is not None and log.exists() else ""
                raise AssertionError(f"{self.call('squeue', '--states=all')}\n{printed}")
            time.sleep(interval)

    def wait_for_end(self, job: str, log: Path | None = None) -> list[str]:
        """Wait until every member of a job has ended; return their states."""
        self.wait(lambda: not any(state in _UNFINISHED for state in self.states(job)), log, interval=0.5)
        return self.states(job)

    def stop(self) -> None:
        """Kill all jobs and all daemons."""
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for daemon in self.daemons.values():
            daemon.kill()
            daemon.wait()


@contextmanager
def run_slurm(folder: Path) -> Iterator[Slurm]:
    """Run a Slurm with four nodes while the context is open."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # munged refuses a folder that others can write to
    for name in ("state", "gpus", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir(exist_ok=True)
    host = socket.gethostname()
    settings = _CONFIGURATION.format(host=host, port=free_port(), user=getpass.getuser(), folder=folder)
    nodes = [_NODE.format(name=name, host=host, port=free_port(), gpus=_GPUS) for name in NODES]
    (folder / "slurm.conf").write_text("".join([settings, *nodes, _PARTITION]))
    for number in range(_GPUS):
        (folder / "gpus" / f"gpu{number}").touch()
    gpus = [f"NodeName={name} Name=gpu File={folder}/gpus/gpu[0-{_GPUS - 1}]\n" for name in NODES]
    (folder / "gres.conf").write_text("".join(gpus))
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(128))
    slurm = Slurm(folder)
    try:
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={folder}/munge.{ending}" for option, ending in files.items()]
        slurm.start_daemon("munged", "munged", "--foreground", "--force", *options)
        slurm.wait((folder / "munge.socket").exists)
        slurm.start_daemon("slurmctld", "slurmctld", "-D", "-c")
        for node in NODES:
            slurm.start_node(node)
        slurm.wait(lambda: _count_idle(slurm) == len(NODES))
        yield slurm
    finally:
        slurm.stop()


def _count_idle(slurm: Slurm) -> int:
    result = subprocess.run(
        ["sinfo", "--noheader", "--states=idle", "--format=%D"],
        env={**os.environ, "SLURM_CONF": str(slurm.configuration)},
        capture_output=True,
        text=True,
        check=False,  # the controller may not yet accept connections
    )
    return sum(map(int, result.stdout.split()))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM stops the daemons, as Ctrl-C does
    with run_slurm(Path(sys.argv[1]).absolute()) as running, suppress(KeyboardInterrupt):
        print(f"export SLURM_CONF={running.configuration}", flush=True)
        signal.pause()
