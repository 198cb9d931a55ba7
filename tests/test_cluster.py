"""The recipes of `recipes/cluster/` run on this machine, with the variables that a scheduler sets."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from albert_cli import store
from albert_cli.data.build import build_data
from albert_cli.data.records import BuildSettings
from albert_cli.errors import ConfigError, InputError
from albert_cli.text.read_settings import ReadSettings
from tests.helpers.command import albert
from tests.helpers.data_directories import contents
from tests.helpers.processes import free_port
from tests.helpers.programs import ROOT, install, make_environment
from tests.helpers.runs import assert_interrupted
from tests.helpers.tiny_recipe import RECIPE

CLUSTER = ROOT / "recipes" / "cluster"


@pytest.fixture
def corpus(tmp_path: Path, documents: list[str]) -> Path:
    """A folder with four text files."""
    folder = tmp_path / "corpus" / "text"
    folder.mkdir(parents=True)
    for number in range(4):
        (folder / f"{number}.txt").write_text("\n\n".join(documents[number * 150 : (number + 1) * 150]))
    return folder


def run(command: list[str], env: dict[str, str]) -> str:
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def assert_merge_equals_single_build(tmp_path: Path, sources: list[str], vocabulary: Path) -> None:
    """Merge the jobs' shards by the command without `--task`; assert that a single build writes the same bytes."""
    albert("data", *sources, "--vocab", vocabulary, "--out", tmp_path / "corpus" / "data", "--workers", 1)
    build_data(sources, vocabulary, tmp_path / "whole", BuildSettings(read=ReadSettings()), workers=1)
    assert contents(tmp_path / "corpus" / "data") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_slurm_array_builds_the_data_of_one_process(tmp_path: Path, corpus: Path, tiny_vocabulary: Path) -> None:
    script = (CLUSTER / "data.slurm").read_text()
    assert re.search(r"^#SBATCH --array=0-15$", script, re.MULTILINE)
    # Files with different weights are not put into one work unit.
    sources = [f"{corpus}/{n}.txt@{n + 1}" for n in range(4)]
    shared = {"SOURCES": " ".join(sources), "VOCABULARY": str(tiny_vocabulary)}
    shared |= {"OUT": str(tmp_path / "corpus" / "data"), "SLURM_CPUS_PER_TASK": "1"}
    array = {"SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_MAX": "1"}
    for job in ("1", "0"):
        env = make_environment(tmp_path, **shared, **array, SLURM_ARRAY_TASK_ID=job)
        assert f"job {job}/2, 2 work units" in run(["bash", str(CLUSTER / "data.slurm")], env)
    # A job that is repeated alone still has its number in the whole array.
    alone = {"SLURM_ARRAY_TASK_COUNT": "1", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_MAX": "1"}
    env = make_environment(tmp_path, **shared, **alone, SLURM_ARRAY_TASK_ID="1")
    repeated = run(["bash", str(CLUSTER / "data.slurm")], env)
    assert "job 1/2, 2 work units" in repeated
    assert "4 of 4 work units are finished" in repeated
    assert_merge_equals_single_build(tmp_path, sources, tiny_vocabulary)


@pytest.mark.slow
def test_slurm_array_leaves_globs_to_albert(tmp_path: Path, corpus: Path, tiny_vocabulary: Path) -> None:
    variables = {"SOURCES": f"{corpus}/*.txt", "VOCABULARY": str(tiny_vocabulary), "OUT": str(tmp_path / "data")}
    array = {"SLURM_ARRAY_TASK_COUNT": "1", "SLURM_ARRAY_TASK_ID": "0"}
    run(["bash", str(CLUSTER / "data.slurm")], make_environment(tmp_path, **variables, **array))
    assert shlex.quote(variables["SOURCES"]) in albert("status", variables["OUT"]).out


@pytest.mark.parametrize(
    ("script", "variables"), [("data", "SOURCES VOCABULARY OUT"), ("evaluate", "CHECKPOINT DATA OUT")]
)
def test_slurm_comment_submits_the_jobs_and_the_merge(script: str, variables: str, tmp_path: Path) -> None:
    lines = (CLUSTER / f"{script}.slurm").read_text().splitlines()
    commands = "\n".join(line.removeprefix("#") for line in lines if line.startswith("#   "))
    commands = commands.replace("=/disk/", "='/my disk'/")  # a path may contain spaces
    install(tmp_path, "sbatch", 'printf "%s\\n" "$@" >&2; echo 7')
    environment = make_environment(tmp_path)
    show = "; ".join(f'printf "%s\\n" "${name}"' for name in variables.split())
    printed = run(["bash", "-c", f"{{ {commands}\n}} 2>&1; {show}"], environment).splitlines()
    values = printed[-len(variables.split()) :]
    merge = next(line for line in printed if line.startswith(("albert ", "set -f; albert ")))
    assert all(values) and all(value in shlex.split(merge) for value in values)
    assert "--dependency=afterok:7" in printed


@pytest.mark.parametrize("path", sorted(CLUSTER.glob("*.kubernetes.yaml")), ids=lambda path: path.name)
def test_kubernetes_file_is_valid(path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for document in yaml.safe_load_all(path.read_text()):
        validate.validate(document, "1.37", strict=True)


def test_kubernetes_does_not_retry_bad_input() -> None:
    job = yaml.safe_load((CLUSTER / "data.kubernetes.yaml").read_text())["spec"]
    (rule,) = [rule for rule in job["podFailurePolicy"]["rules"] if rule["action"] == "FailIndex"]
    assert rule["onExitCodes"]["values"] == [ConfigError.exit_code, InputError.exit_code]
    assert "backoffLimit" not in job
    assert job["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.slow
def test_kubernetes_job_builds_the_data_of_one_process(tmp_path: Path, corpus: Path, tiny_vocabulary: Path) -> None:
    job = yaml.safe_load((CLUSTER / "data.kubernetes.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    comment = " ".join((CLUSTER / "data.kubernetes.yaml").read_text().split("apiVersion")[0].replace("#", "").split())
    assert f" {shlex.join(container['command'])} (in a pod" in comment, "the comment must have the command of the pods"
    assert job["spec"]["completionMode"] == "Indexed"
    assert int(env["JOB_COMPLETIONS"]) == job["spec"]["completions"]
    command = [part.replace("/corpus/vocabulary", str(tiny_vocabulary)) for part in container["command"]]
    command = [part.replace("/corpus", str(tmp_path / "corpus")) for part in command + container["args"]]
    workers = command.index("--workers") + 1
    command[workers] = "1"
    for index in ("0", "1"):
        env |= {"JOB_COMPLETIONS": "2", "JOB_COMPLETION_INDEX": index}
        assert f"job {index}/2" in run(command, make_environment(tmp_path, **env))
    assert_merge_equals_single_build(tmp_path, [str(corpus)], tiny_vocabulary)


# ---------------------------------------------------------------- pretraining

# A replacement of `srun` for one machine: a step runs its command on the only node, and passes USR1 on to it.
SRUN = """
shift 2  # --ntasks=1 --kill-on-bad-exit=0
"$@" & node=$!
trap 'kill -USR1 "$node"; signalled=yes' USR1
code=0; wait "$node" || code=$?
if [ -n "$signalled" ]; then code=0; wait "$node" || code=$?; fi
exit "$code"
"""
SCONTROL = 'if [ "$1" = show ]; then echo localhost; else echo "$@" >> "$CALLS"; fi'


def status(run: Path) -> dict[str, Any]:
    return store.read_json(run / "status.json")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, tiny_data: Path) -> Path:
    """The folder of a SLURM job with one node, which has received a signal before its time limit."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "tiny.toml").write_text(RECIPE)
    env = slurm_environment(folder, tiny_data)
    with subprocess.Popen(SLURM_JOB, env=env, stderr=subprocess.PIPE, text=True) as job:
        while not (folder / "run" / "metrics.jsonl").exists() and job.poll() is None:
            time.sleep(0.01)
        assert job.poll() is None, job.communicate()[1]
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGUSR1)  # to the step only, as the option --signal without "B:" does
        _, printed = job.communicate()
    assert job.returncode == 75, printed
    return folder


SHORT = "--device cpu -s schedule.total_steps=400 -s train.eval_every=0 -s train.save_every=0"
SHORT += " -s model.num_hidden_layers=1 -s train.micro_batch_size=8"
SLURM_JOB = ["bash", str(CLUSTER / "pretrain.slurm"), *SHORT.split()]


def slurm_environment(folder: Path, data: Path) -> dict[str, str]:
    install(folder, "srun", SRUN)
    install(folder, "scontrol", SCONTROL)
    settings = {"RECIPE": str(folder / "tiny.toml"), "DATA": str(data), "OUT": str(folder / "run")}
    settings |= {"PROCESSES": "1", "PORT": free_port(), "OMP_NUM_THREADS": "1", "CALLS": str(folder / "calls")}
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "localhost"}
    return make_environment(folder, **settings, **slurm)


@pytest.mark.slow
def test_slurm_saves_before_the_time_limit_and_requeues(stopped: Path, tiny_data: Path) -> None:
    script = (CLUSTER / "pretrain.slurm").read_text()
    assert re.search(r"^#SBATCH --signal=USR1@\d+$", script, re.MULTILINE)
    assert_interrupted(stopped / "run")
    assert (stopped / "calls").read_text() == "requeue 7\n"
    # The status is still "interrupted" if `srun` fails before training begins. The job must not be requeued then.
    env = slurm_environment(stopped, tiny_data)
    install(stopped, "srun", "exit 1")
    assert subprocess.run(SLURM_JOB, env=env, check=False).returncode == 1
    assert (stopped / "calls").read_text() == "requeue 7\n"


ARRAY_ENDS = [(75, True, True), (143, True, True), (1, True, False), (75, False, False)]


@pytest.mark.parametrize("script", ["reproduce", "evaluate"])
@pytest.mark.parametrize(("code", "is_signalled", "is_requeued"), ARRAY_ENDS)
def test_slurm_array_saves_before_the_time_limit(
    script: str, code: int, is_signalled: bool, is_requeued: bool, tmp_path: Path
) -> None:
    text = (CLUSTER / f"{script}.slurm").read_text()
    assert re.search(r"^#SBATCH --signal=B:USR1@\d+$", text, re.MULTILINE) and "\n#SBATCH --requeue\n" in text
    env = make_environment(tmp_path, SLURM_JOB_ID="7", CALLS=str(tmp_path / "calls"))
    install(tmp_path, "scontrol", SCONTROL)
    has_begun = tmp_path / "begun"
    wait = "while true; do sleep 0.1; done" if is_signalled else ""
    install(tmp_path, "albert", f"trap 'exit {code}' TERM\ntouch {shlex.quote(str(has_begun))}\n{wait}\nexit {code}")
    with subprocess.Popen(["bash", str(CLUSTER / f"{script}.slurm"), "name"], env=env) as job:
        while is_signalled and not has_begun.exists() and job.poll() is None:
            time.sleep(0.01)
        if is_signalled:
            job.send_signal(signal.SIGUSR1)
    assert job.returncode == code
    requeued = (tmp_path / "calls").read_text() if (tmp_path / "calls").exists() else ""
    assert requeued == ("requeue 7\n" if is_requeued else "")


def test_slurm_tells_srun_the_cores_of_a_task(tmp_path: Path) -> None:
    install(tmp_path, "srun", 'echo "cores: ${SRUN_CPUS_PER_TASK-all}"')
    install(tmp_path, "scontrol", SCONTROL)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "localhost"}
    assert run(SLURM_JOB, make_environment(tmp_path, **slurm, SLURM_CPUS_PER_TASK="64")) == "cores: 64\n"
    assert run(SLURM_JOB, make_environment(tmp_path, **slurm)) == "cores: all\n"


@pytest.mark.slow
def test_kubernetes_resumes_the_run_of_the_slurm_job(stopped: Path, tiny_data: Path) -> None:
    service, job = yaml.safe_load_all((CLUSTER / "pretrain.kubernetes.yaml").read_text())
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (line,) = container["args"]
    name = service["metadata"]["name"]
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", spec["parallelism"])
    assert f"--nnodes {spec['completions']} " in line
    assert f"--master-addr {name}-0.{pod['subdomain']} " in line
    assert pod["subdomain"] == name
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    local_values = {
        f"--nnodes {spec['completions']}": "--nnodes 1",
        "--nproc-per-node gpu": "--nproc-per-node 1",
        f"{name}-0.{pod['subdomain']} --master-port 29500": f"127.0.0.1 --master-port {free_port()}",
        "pretrain/albert-base": f"{stopped}/tiny.toml {SHORT}",
        "/corpus/data": str(tiny_data),
        "/corpus/run": str(stopped / "run"),
    }
    for original, replacement in local_values.items():
        assert original in line
        line = line.replace(original, replacement)
    saved_step = status(stopped / "run")["step"]
    env = make_environment(stopped, OMP_NUM_THREADS="1")
    env["JOB_COMPLETION_INDEX"] = "0"
    result = subprocess.run([*container["command"], line], env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert f"resuming from step {saved_step}" in result.stderr
    assert (status(stopped / "run")["state"], status(stopped / "run")["step"]) == ("done", 400)
