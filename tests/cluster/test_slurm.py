"""The unchanged recipes of `recipes/cluster/` on a real Slurm of four nodes.

Options of `sbatch` make the arrays and jobs smaller, because each process takes seconds to import torch.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from albert_cli import store
from tests.cluster.slurm import NODES, Slurm, missing_programs, run_slurm
from tests.helpers.command import albert
from tests.helpers.data_directories import contents
from tests.helpers.processes import free_port
from tests.helpers.programs import ROOT, make_environment
from tests.helpers.task_fixtures import encoder, inference
from tests.helpers.task_runs import QUICK
from tests.helpers.tiny_recipe import RECIPE

__all__ = ["encoder", "inference"]
RECIPES = ROOT / "recipes" / "cluster"
STEPS = 1000
FEW_CORES = "--cpus-per-task=2"  # the recipes start as many workers as a job has cores
_MISSING = missing_programs()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(_MISSING), reason=f"no real Slurm: {', '.join(_MISSING)} missing (apt-get install slurm-wlm munge)"
    ),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with run_slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture
def corpus(tmp_path: Path, documents: list[str]) -> list[str]:
    """Twenty files with different weights, so that each file is a separate work unit."""
    sources = []
    for number in range(20):
        path = tmp_path / "corpus" / f"{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n\n".join(documents[number * 30 : (number + 1) * 30]))
        sources.append(f"{path}@{1 + number / 10}")
    return sources


def submit(slurm: Slurm, folder: Path, recipe: str, *options: str, **variables: str) -> str:
    """Submit a recipe and return the job's number; `options`: those of `sbatch`, then `--` and those of the recipe."""
    split = options.index("--") if "--" in options else len(options)
    environment = make_environment(folder, OMP_NUM_THREADS="1", **variables)
    output = f"--output={folder}/%A-%a.log"
    command = ["sbatch", "--parsable", output, *options[:split], str(RECIPES / recipe), *options[split + 1 :]]
    return slurm.call(*command, **environment)


def submit_last(slurm: Slurm, folder: Path, after: str, command: str) -> str:
    """Submit the command that runs after an array, as the comments in the recipes explain."""
    options = [f"--dependency=afterok:{after}", "--ntasks=1", "--mem=8G", f"--output={folder}/%j-last.log"]
    return slurm.call("sbatch", "--parsable", *options, "--wrap", command, **make_environment(folder))


def logs(folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace") for path in sorted(folder.glob("*.log")))


def test_vocabulary_has_the_bytes_of_one_process(
    slurm: Slurm, tmp_path: Path, corpus: list[str], documents: list[str]
) -> None:
    out = tmp_path / "vocabulary"
    variables = {"SOURCES": " ".join(corpus), "OUT": str(out)}
    job = submit(slurm, tmp_path, "vocabulary.slurm", FEW_CORES, "--", "--size", "300", **variables)
    assert slurm.wait_for_end(job) == ["COMPLETED"], logs(tmp_path)
    albert("vocab", *corpus, "--out", tmp_path / "whole", "--size", 300, "--workers", 1)
    assert contents(out) == contents(tmp_path / "whole")


def test_data_survives_a_killed_node_and_repeats_one_member(
    slurm: Slurm, tmp_path: Path, corpus: list[str], tiny_vocabulary: Path
) -> None:
    out = tmp_path / "data"
    variables = {"SOURCES": " ".join(corpus), "VOCABULARY": str(tiny_vocabulary), "OUT": str(out)}
    array = submit(slurm, tmp_path, "data.slurm", FEW_CORES, "--array=0-3", **variables)
    slurm.wait(lambda: slurm.states(array).count("RUNNING") == 4)
    slurm.kill_node(NODES[0])  # all four jobs fit on the first node
    assert slurm.wait_for_end(array) == ["COMPLETED"] * 4, logs(tmp_path)
    slurm.start_node(NODES[0])
    assert store.read_manifest(out) is None, "the jobs of the array must not merge"
    assert len(list(out.glob("shards/*"))) == 20
    shutil.rmtree(out / "shards")
    member = submit(slurm, tmp_path, "data.slurm", FEW_CORES, "--array=3", **variables)
    merge = f"albert data {variables['SOURCES']} --vocab {tiny_vocabulary} --out {out}"
    last = submit_last(slurm, tmp_path, member, merge)
    assert slurm.wait_for_end(last) == ["COMPLETED"], logs(tmp_path)
    printed = (tmp_path / f"{member}-3.log").read_text()
    assert "job 3/4, 5 work units" in printed
    assert "5 of 20 work units are finished" in printed
    albert("data", *corpus, "--vocab", tiny_vocabulary, "--out", tmp_path / "whole", "--workers", 1)
    assert contents(out) == contents(tmp_path / "whole")


def test_data_on_dask_survives_a_lost_job(
    slurm: Slurm, tmp_path: Path, corpus: list[str], tiny_vocabulary: Path
) -> None:
    pytest.importorskip("dask_jobqueue", reason="the extra `cluster` is not installed")
    out = tmp_path / "data"
    command = ["data", *corpus, "--vocab", str(tiny_vocabulary), "--out", str(out)]
    environment = make_dask_environment(slurm, tmp_path)
    with (
        (tmp_path / "driver.log").open("wb") as log,
        subprocess.Popen(
            ["albert", *command, "--cluster", "slurm:2"], env=environment, stdout=log, stderr=log
        ) as driver,
    ):
        slurm.wait(lambda: any(out.glob(f"shards/*/{store.MANIFEST}")), tmp_path / "driver.log")
        job = slurm.call("squeue", "--noheader", "--states=RUNNING", "--format=%A").split()[0]
        slurm.call("scancel", "--signal=KILL", "--full", job)
        slurm.wait(lambda: driver.poll() is not None, tmp_path / "driver.log")
    assert driver.returncode == 0, logs(tmp_path)
    albert(*command[:-1], tmp_path / "whole", "--workers", 1)
    assert contents(out) == contents(tmp_path / "whole")


def test_evaluation_on_dask_trains_in_slurm_jobs(slurm: Slurm, tmp_path: Path, encoder: Path, inference: Path) -> None:
    pytest.importorskip("dask_jobqueue", reason="the extra `cluster` is not installed")
    settings = ["--runs", "2", "--no-baselines", "--device", "cpu", *(word for text in QUICK for word in ("-s", text))]
    call = ["eval", "wnli", "--checkpoint", str(encoder), "--data", str(inference), *settings]
    command = ["albert", *call, "--out", str(tmp_path / "scores"), "--cluster", "slurm:1"]
    environment = make_dask_environment(slurm, tmp_path)
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{result.stderr}\n{logs(tmp_path)}"
    albert(*call, "--out", tmp_path / "whole")
    for seed in (0, 1):
        weights = [tmp_path / out / f"run-{seed}" / "model.safetensors" for out in ("scores", "whole")]
        assert weights[0].read_bytes() == weights[1].read_bytes()


def make_dask_environment(slurm: Slurm, folder: Path) -> dict[str, str]:
    """Return an environment in which Dask finds this Slurm and writes its logs to a folder."""
    settings = {"DASK_JOBQUEUE__SLURM__WALLTIME": "00:10:00", "DASK_JOBQUEUE__SLURM__LOG_DIRECTORY": str(folder)}
    return make_environment(folder, SLURM_CONF=str(slurm.configuration), **settings)


def test_pretraining_survives_signal_requeue_and_a_lost_node(slurm: Slurm, tmp_path: Path, tiny_data: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE)
    run = tmp_path / "run"
    settings = f"--device cpu -s schedule.total_steps={STEPS} -s train.eval_every=0 -s train.save_every=20".split()
    settings += ["-s", "model.num_hidden_layers=1", "-s", "train.log_every=20"]
    variables = {"RECIPE": str(recipe), "DATA": str(tiny_data), "OUT": str(run), "PROCESSES": "1", "PORT": free_port()}
    job = submit(slurm, tmp_path, "pretrain.slurm", "--nodes=2", "--", *settings, **variables)
    slurm.wait(lambda: bool(store.saved_steps(run)))
    slurm.call("scancel", "--signal=USR1", job)  # to the steps of the job, as the recipe's option --signal does
    slurm.wait(lambda: read_status(run).get("state") == "interrupted")
    assert read_status(run)["exit_code"] == 75
    step = newest_step(run)
    slurm.wait(lambda: newest_step(run) > step)
    assert newest_step(run) < STEPS, "the run still trains"
    slurm.kill_node(NODES[1])
    slurm.wait(lambda: slurm.states(job) in (["PENDING"], ["COMPLETED"]))
    assert slurm.states(job) == ["PENDING"], "the node was lost after the last step"
    slurm.call("scontrol", "update", f"JobId={job}", "NumNodes=1", "NumTasks=1", "NumCPUs=64")
    assert slurm.wait_for_end(job) == ["COMPLETED"], logs(tmp_path)
    slurm.start_node(NODES[1])
    assert read_status(run)["state"] == "done"
    assert newest_step(run) == STEPS
    whole = ["--out", tmp_path / "whole", "--quiet", *settings, "-s", "train.save_every=0"]
    albert("pretrain", recipe, "--data", tiny_data, *whole)
    for name in ("model.safetensors", "optimizer.safetensors"):
        files = [folder / f"step-{STEPS:08d}" / name for folder in (run, tmp_path / "whole")]
        assert files[0].read_bytes() == files[1].read_bytes()


def read_status(run: Path) -> Mapping[str, object]:
    path = run / "status.json"
    return store.read_json(path) if path.exists() else {}


def newest_step(run: Path) -> int:
    return max(map(store.step_number, store.saved_steps(run)))


def test_evaluation_of_glue_needs_one_submission(slurm: Slurm, tmp_path: Path, encoder: Path, inference: Path) -> None:
    out = tmp_path / "scores"
    settings = ["--runs", "2", "--no-baselines", "--device", "cpu", *(word for text in QUICK for word in ("-s", text))]
    variables = {"CHECKPOINT": str(encoder), "DATA": str(inference), "OUT": str(out)}
    array = submit(slurm, tmp_path, "evaluate.slurm", "--array=0-1", "--", "glue", *settings, **variables)
    paths = ["--checkpoint", str(encoder), "--data", str(inference)]
    last = submit_last(slurm, tmp_path, array, " ".join(["albert eval glue", *paths, "--out", str(out), *settings]))
    assert slurm.wait_for_end(array) == ["COMPLETED"] * 2, logs(tmp_path)
    assert len(list(out.glob("*/run-*/results.json"))) == 6, "the array must finish all runs"
    assert slurm.wait_for_end(last) == ["COMPLETED"], logs(tmp_path)
    albert("eval", "glue", *paths, "--out", tmp_path / "whole", *settings)
    trained = sorted(out.glob("*/run-*/model.safetensors"))
    assert trained
    for weights in trained:
        assert weights.read_bytes() == (tmp_path / "whole" / weights.relative_to(out)).read_bytes()
    scores, whole = (store.read_json(folder / "results.json") for folder in (out, tmp_path / "whole"))
    for task in whole["tasks"]:
        assert scores["tasks"][task]["median"] == whole["tasks"][task]["median"]


def test_array_runs_an_experiment_with_the_same_weights(slurm: Slurm, tmp_path: Path, tiny_data: Path) -> None:
    recipe = tmp_path / "sharing.toml"
    recipe.write_text('extends = "experiments/sharing"\nscales.smoke = { variants = ["all", "none"], tasks = [] }\n')
    arguments = [str(recipe), "--scale", "smoke", "--seeds", "1", "--device", "cpu", "--data", str(tiny_data)]
    out = tmp_path / "experiments"
    array = submit(slurm, tmp_path, "reproduce.slurm", "--array=0-1", "--", *arguments, OUT=str(out))
    assert slurm.wait_for_end(array) == ["COMPLETED"] * 2, logs(tmp_path)
    albert("reproduce", *arguments, "--out", tmp_path / "whole")
    trained = sorted((tmp_path / "whole").glob("stages/*/step-*/model.safetensors"))
    assert trained
    for weights in trained:
        assert weights.read_bytes() == (out / weights.relative_to(tmp_path / "whole")).read_bytes()
