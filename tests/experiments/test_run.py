"""Experiments from end to end at the smoke scale: shared stages, resuming, verdicts and reports."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from albert_cli import array_jobs, executor, store
from albert_cli.array_jobs import ArrayJob
from albert_cli.cli.app import invoke
from albert_cli.errors import BusyError, ConfigError, InputError, Interrupted, LockedError
from albert_cli.executor import stopping
from albert_cli.experiments import outcome, pages, recipe, runner
from albert_cli.experiments.experiment import SCALES
from albert_cli.experiments.plan import ExperimentPlan, ExperimentRequest
from albert_cli.experiments.probe import classify_convergence
from albert_cli.experiments.runner import run_stages
from albert_cli.experiments.stages import make_plan
from albert_cli.experiments.uncertainty import JACKKNIFE_GROUPS
from albert_cli.model import hub, loading
from albert_cli.model.heads import BareEncoder, MaskedLanguageModel
from tests.helpers.command import albert, snapshot
from tests.helpers.experiments import finish_stage
from tests.helpers.leftovers import leftover
from tests.helpers.processes import PATIENCE, start
from tests.helpers.reports import Page


def reproduce(name: str, out: Path, *more: object, expect: int = 0) -> dict[str, Any]:
    call = ["reproduce", name, "--scale", "smoke", "--out", out, "--device", "cpu", "--json", *more]
    ended = albert(*call, expect=expect)
    return json.loads(ended.out) if expect == 0 else {"err": ended.err}


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two variants of `sharing`, on one task."""
    path = tmp_path_factory.mktemp("recipe") / "sharing.toml"
    path.write_text(
        'extends = "experiments/sharing"\nscales.smoke = { variants = ["all", "none"], tasks = ["mrpc"] }\n'
    )
    return str(path)


@pytest.fixture(scope="module")
def ran(
    tmp_path_factory: pytest.TempPathFactory, sharing: str, tiny_data: Path, tiny_glue: Path
) -> tuple[Path, dict[str, Any]]:
    """The output directory and the result of `sharing` with one seed."""
    out = tmp_path_factory.mktemp("reproduce") / "out"
    return out, reproduce(sharing, out, "--data", tiny_data, "--tasks", tiny_glue, "--seeds", 1)


def verdicts(result: dict[str, Any]) -> list[str]:
    return [claim["verdict"] for claim in result["claims"]]


def test_report_has_verdicts_tables_and_commands(ran: tuple[Path, dict[str, Any]], sharing: str) -> None:
    out, result = ran
    page = Path(result["report"]).read_text(encoding="utf-8")
    assert Path(result["report"]) == out / "sharing-smoke" / "report.html"
    assert "scale smoke" in page.split("</title>")[0]
    assert f"albert reproduce {sharing} --scale smoke" in page
    assert "89.3/82.3" in page, "the paper's table"
    assert all(word in page for word in ("holds", "too noisy to tell", "shared attention", "albert pretrain"))
    calls = re.findall(r"albert (pretrain|probe) ", Page(page).text)
    assert sorted(calls) == ["pretrain", "pretrain", "probe", "probe"], "one of each for both variants"
    blocks = {name: metrics["block_parameters"]["0"] for name, metrics in result["values"].items()}
    assert blocks["none"] == 4 * blocks["all"]
    assert "task_mrpc" in result["values"]["all"]


def test_one_seed_decides_only_counts(ran: tuple[Path, dict[str, Any]]) -> None:
    undecided = {"too noisy to tell", "not measured"}  # the claims about E = H compare variants that were not run
    counts, *learning = verdicts(ran[1])
    assert counts == "holds" and len(learning) == 6 and set(learning) == undecided


def test_list_with_out_prints_verdicts(ran: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out, result = ran
    listed = json.loads(albert("reproduce", "--list", "--out", out, "--json").out)
    assert listed["sharing-smoke"] == {claim["statement"]: claim["verdict"] for claim in result["claims"]}
    assert "  holds: All-shared layers have" in albert("reproduce", "--list", "--out", out).out
    assert "no finished experiment" in albert("reproduce", "--list", "--out", tmp_path, expect=3).err
    (tmp_path / "eval").mkdir()
    store.write_json(tmp_path / "eval" / "results.json", {"kind": "scored", "task": "rte"})
    assert "no finished experiment" in albert("reproduce", "--list", "--out", tmp_path, expect=3).err


def test_second_run_repeats_nothing(
    ran: tuple[Path, dict[str, Any]], sharing: str, tiny_data: Path, tiny_glue: Path
) -> None:
    out, first = ran
    before = snapshot(out)
    again = reproduce(sharing, out, "--data", tiny_data, "--tasks", tiny_glue, "--seeds", 1)
    assert again["stages_finished_now"] == 0
    assert {**again, "wall_seconds": 0, "stages_finished_now": 0} == {
        **first,
        "wall_seconds": 0,
        "stages_finished_now": 0,
    }
    assert snapshot(out) == before


def test_stage_without_its_directory_runs_again(
    ran: tuple[Path, dict[str, Any]], sharing: str, tmp_path: Path, tiny_data: Path, tiny_glue: Path
) -> None:
    out = Path(shutil.copytree(ran[0], tmp_path / "out"))
    deleted = [min(out.glob(f"stages/{kind}-*/")) for kind in ("pretrain", "task")]
    for directory in deleted:
        shutil.rmtree(directory)
    min(out.glob("stages/probe-*.json")).unlink()
    call = ["reproduce", sharing, "--scale", "smoke", "--out", out, "--device", "cpu", "--seeds", 1, "--json"]
    ended = albert(*call, "--data", tiny_data, "--tasks", tiny_glue)
    again = json.loads(ended.out)
    assert again["stages_finished_now"] == 3
    assert scores(again) == scores(ran[1]) and verdicts(again) == verdicts(ran[1])
    assert all(directory.is_dir() and f"{directory}: was deleted" in ended.err for directory in deleted)


def test_diverged_stage_and_probe_need_no_directory(tmp_path: Path, tiny_data: Path) -> None:
    request = ExperimentRequest("smoke", tmp_path, data=tiny_data, seeds=1)
    plan = make_plan(recipe.load_experiment("sharing"), request)
    run = plan.runs[0]
    for stage in run.stages:
        finish_stage(plan, stage, {})
        plan.directory(stage).rmdir()
    assert plan.unfinished(run.stages) == [run.pretrain]
    assert run.pretrain is not None
    store.write_json(plan.result_path(run.pretrain), {"diverged": True})
    assert plan.unfinished(run.stages) == []


def test_second_experiment_reuses_finished_runs(
    ran: tuple[Path, dict[str, Any]], tiny_data: Path, tiny_glue: Path
) -> None:
    result = reproduce("similarity", ran[0], "--data", tiny_data, "--tasks", tiny_glue, "--seeds", 1)
    assert (result["stages"], result["stages_finished_now"]) == (4, 0)
    page = Page(Path(result["report"]).read_text(encoding="utf-8"))
    titles = [value or "" for name, value in page.attributes if name == "alt"]
    assert [word for word in ("distance", "angle") if not any(word in title.lower() for title in titles)] == []


def test_verdict_follows_the_result_files(tmp_path: Path, tiny_data: Path) -> None:
    """Other numbers in the result files give another verdict."""
    claim = "A model trained on SOP is above 70 % on both tasks."
    plan = make_plan(
        recipe.load_experiment("sentence-loss"), ExperimentRequest("h200", tmp_path, data=tiny_data, seeds=2)
    )
    output = []
    for accuracies in ((0.92, 0.93), (0.60, 0.61), (0.69, 0.72), (0.50, 0.51)):
        for run in plan.runs:
            scores = {"nsp_accuracy": 0.9, "sop_accuracy": accuracies[run.seed]}
            without = {name: [score] * JACKKNIFE_GROUPS for name, score in scores.items()}
            finish_stage(plan, run.probe, scores | {"without_parts": without})
        read = outcome.read_outcome(plan)
        output.append(next(j.verdict for j in read.claims if j.claim.statement == claim))
        page = pages.write_report(read)
        for name in ("report.html", "report.md"):
            assert f"{100 * sum(accuracies) / 2:.1f}" in page.with_name(name).read_text()
    assert output == ["holds", "does not hold at this scale", "too noisy to tell", "not learned at this scale"]


def test_two_array_jobs_share_the_stages(
    ran: tuple[Path, dict[str, Any]], sharing: str, tmp_path: Path, tiny_data: Path, tiny_glue: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(array_jobs, "SECONDS_BETWEEN_ATTEMPTS", 0.2)
    out = tmp_path / "out"
    call = ["reproduce", sharing, "--scale", "smoke", "--out", out, "--device", "cpu", "--seeds", 1]
    call += ["--data", tiny_data, "--tasks", tiny_glue, "--json", "--quiet"]
    other = start(tmp_path / "log", *call, "--task", "1/2")
    result = json.loads(albert(*call, "--task", "0/2").out)
    assert other.wait() == 0, other.printed_text()
    other_result = json.loads(other.printed_text().strip().splitlines()[-1])
    assert result["stages_finished_now"] + other_result["stages_finished_now"] == result["stages"]
    assert verdicts(result) == verdicts(other_result) == verdicts(ran[1])
    assert scores(result) == scores(ran[1])


def test_array_job_waits_for_the_report_and_counts_its_stages(
    ran: tuple[Path, dict[str, Any]], sharing: str, tmp_path: Path, tiny_data: Path, tiny_glue: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = Path(shutil.copytree(ran[0], tmp_path / "out"))
    min(out.glob("stages/*.json")).unlink()
    original_lock = store.lock
    refused: list[Path] = []

    def lock(directory: Path) -> contextlib.AbstractContextManager[None]:
        if directory == out and not refused:
            refused.append(directory)
            raise LockedError(f"{directory}: another run is writing")
        return original_lock(directory)

    monkeypatch.setattr(store, "lock", lock)
    monkeypatch.setattr(array_jobs, "SECONDS_BETWEEN_ATTEMPTS", 0)
    request = ExperimentRequest("smoke", out, data=tiny_data, tasks=tiny_glue, seeds=1, device="cpu")
    data, _ = runner.run_array_job(sharing, request, invoke, ArrayJob(0, 1))
    assert data["stages_finished_now"] == 1
    assert "trying again" in capsys.readouterr().err


def test_array_job_measures_speeds_before_it_trains(tmp_path: Path, tiny_data: Path) -> None:
    begun: list[str] = []

    def stage(arguments: Sequence[str]) -> tuple[int, str]:
        begun.append(arguments[0])
        if arguments[0] == "bench":
            return 0, json.dumps({"recipe_step": {"seconds": 0.1}})
        raise Interrupted("stopped")

    request = ExperimentRequest("smoke", tmp_path / "out", data=tiny_data, device="cpu", seeds=1)
    with pytest.raises(Interrupted):
        runner.run_array_job("equal-time", request, stage, ArrayJob(1, 2))
    assert begun == ["bench", "bench", "pretrain"]


def test_array_job_reports_missing_text_and_limits_first(
    tmp_path: Path, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(arguments: Sequence[str]) -> tuple[int, str]:
        raise Interrupted("stopped")

    missing = tmp_path / "wikki.jsonl"
    request = ExperimentRequest("smoke", tmp_path / "out", text=(str(missing),), device="cpu", seeds=1)
    with pytest.raises(InputError, match=re.escape(str(missing))):
        runner.run_array_job("sharing", request, stop, ArrayJob(0, 2))
    with pytest.raises(Interrupted):
        runner.run_array_job("sharing", dataclasses.replace(request, text=(), data=tiny_data), stop, ArrayJob(0, 2))
    printed = capsys.readouterr().err
    assert "mrpc is skipped: --tasks is missing" in printed and "one seed has no spread" in printed


def test_reproduce_as_a_rank_is_rejected(tmp_path: Path, tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "one process" in reproduce("sharing", tmp_path / "out", "--data", tiny_data, expect=2)["err"]
    assert not (tmp_path / "out").exists()


def test_killed_run_resumes_to_the_same_report(
    ran: tuple[Path, dict[str, Any]], sharing: str, tmp_path: Path, tiny_data: Path, tiny_glue: Path
) -> None:
    """After kill -9 a repeated run leaves finished stages unchanged and has the scores of an uninterrupted run."""
    out = tmp_path / "out"
    call = ["reproduce", sharing, "--scale", "smoke", "--out", out, "--device", "cpu", "--seeds", 1]
    call += ["--data", tiny_data, "--tasks", tiny_glue]
    child = start(tmp_path / "log", *call)
    child.reaches(lambda: len(list(out.glob("stages/*.json"))) >= 2)
    child.kill()
    done = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.glob("stages/*.json")}
    assert 2 <= len(done) < 6
    half = leftover(out / "stages" / "pretrain-0123.json")
    half.write_text("half a rec")
    again = json.loads(albert(*call, "--json").out)
    assert again["stages_finished_now"] == 6 - len(done)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in done} == done
    ours, theirs = (scores(result) for result in (again, ran[1]))
    assert ours == theirs
    assert verdicts(again) == verdicts(ran[1])
    assert not half.exists()


def test_probe_rejects_more_tokens_than_positions(ran: tuple[Path, dict[str, Any]], tiny_data: Path) -> None:
    run = next((ran[0] / "stages").glob("pretrain-*/"))
    ended = albert("probe", run, "--data", tiny_data, "-s", "data.max_seq_length=512", expect=2)
    assert "has only 128 positions" in ended.err


def test_probe_uses_the_settings_of_the_run(ran: tuple[Path, dict[str, Any]], tiny_data: Path) -> None:
    """By default a probe has the length and the masks of the run that trained the checkpoint."""
    plan_says = next(ran[0].glob("stages/probe-*.json"))
    expected = json.loads(plan_says.read_text())["result"]
    call = ("probe", expected["checkpoint"], "--data", tiny_data, "--sequences", 8)
    layers = json.loads(albert(*call, "--json").out)
    assert layers == expected and (layers["data"]["max_seq_length"], layers["data"]["ngram"]) == (32, 1)
    assert "at most 32 tokens" in albert(*call).out
    assert json.loads(albert(*call, "-s", "data.ngram=3", "--json").out)["data"]["ngram"] == 3


@pytest.mark.parametrize(("written", "ended"), [("data = 3", "data is not a section"), ("data = [", "not valid TOML")])
def test_probe_rejects_a_damaged_recipe(
    written: str, ended: str, ran: tuple[Path, dict[str, Any]], tiny_data: Path, tmp_path: Path
) -> None:
    """While the manifest exists, its hashes reveal the damage before the recipe is read."""
    run = hub.find_checkpoint(str(next((ran[0] / "stages").glob("pretrain-*/"))))
    shutil.copytree(run, tmp_path / "it")
    (tmp_path / "it" / "recipe.toml").write_text(written)
    assert "in the manifest" in albert("probe", tmp_path / "it", "--data", tiny_data, expect=4).err
    (tmp_path / "it" / store.MANIFEST).unlink()
    assert re.search(f"it/recipe.toml: {ended}", albert("probe", tmp_path / "it", "--data", tiny_data, expect=4).err)


def test_probe_scores_only_the_heads_of_the_checkpoint(
    ran: tuple[Path, dict[str, Any]], tiny_data: Path, tmp_path: Path
) -> None:
    output = hub.read_checkpoint(hub.find_checkpoint(str(next((ran[0] / "stages").glob("pretrain-*/")))))
    for name, model in (("MaskedLM", MaskedLanguageModel(output.config)), ("Model", BareEncoder(output.config))):
        loading.load_weights(model, output)
        shutil.copytree(output.directory, tmp_path / name, ignore=shutil.ignore_patterns(store.MANIFEST))
        hub.write_checkpoint(model, tmp_path / name, name.replace("Masked", "ForMasked"))
    options = ("--data", tiny_data, "--sequences", 8, "--json")
    whole, words = (json.loads(albert("probe", it, *options).out) for it in (output.directory, tmp_path / "MaskedLM"))
    assert whole.keys() - words.keys() == {"nsp_accuracy", "sop_accuracy"}
    assert words["mlm_loss"] == whole["mlm_loss"]
    assert "Model: has no masked-language head" in albert("probe", tmp_path / "Model", *options, expect=4).err


def test_probe_scores_other_depths(ran: tuple[Path, dict[str, Any]], tiny_data: Path) -> None:
    run = next(p.parent for p in (ran[0] / "stages").glob("pretrain-*/step-*"))
    options = ("probe", run, "--data", tiny_data, "--sequences", 8)
    output = json.loads(albert(*options, "--layers", 9, "--json").out)
    deep = output["depths"]
    layers = output["layers"]
    assert (deep["layers"], deep["trained"], layers) == (9, 4, 4)
    assert {len(deep[key]) for key in ("l2", "two_back", "mlm_accuracy", "speed")} == {9}
    assert deep["l2"][:4] == pytest.approx(output["layer_steps"]["l2"], rel=1e-4)
    assert deep["mlm_accuracy"][3] == pytest.approx(output["mlm_accuracy"], abs=1e-6), "the trained depth"
    assert deep["speed"][3] == 1
    assert deep["behavior"] in albert(*options, "--layers", 9).out
    (short,) = json.loads(albert(*options, "--layers", 1, "--json").out)["depths"]["mlm_accuracy"]
    assert short == deep["mlm_accuracy"][0], "an early exit is the same at any depth beyond it"


@pytest.mark.parametrize(
    ("l2", "back", "expected"),
    [([4, 4, 1, 0.3], [4, 4, 1, 0.3], "converges"), ([4, 4, 4, 4], [4, 4, 0.1, 0.1], "oscillates"),
     ([4, 4, 4, 4], [4, 7, 7, 7], "keeps moving")],
)  # fmt: skip
def test_classify_convergence_of_repeated_layers(l2: list[float], back: list[float], expected: str) -> None:
    assert classify_convergence(l2, back, trained=2) == expected


def scores(result: dict[str, Any]) -> dict[str, Any]:
    """Return the values without the times."""
    return {
        name: {metric: by_seed for metric, by_seed in metrics.items() if not metric.endswith("seconds")}
        for name, metrics in result["values"].items()
    }


def test_parallel_stages_give_the_same_numbers(
    tmp_path: Path, tiny_data: Path, ran: tuple[Path, dict[str, Any]]
) -> None:
    more = ["--data", tiny_data, "--seeds", 1, "--jobs", 2]
    result = reproduce("similarity", tmp_path / "out", *more)
    assert result["stages_finished_now"] == 4
    shared = result["values"]["shared"]
    theirs = ran[1]["values"]["all"]
    assert {key: shared[key] for key in ("mlm_loss", "l2_mean")} == {
        key: theirs[key] for key in ("mlm_loss", "l2_mean")
    }


def test_killed_run_leaves_no_stage_running(tmp_path: Path, tiny_data: Path) -> None:
    """After kill -9 of a run, its stages in other processes end too."""
    out = tmp_path / "out"
    call = ["reproduce", "similarity", "--scale", "smoke", "--out", out, "--device", "cpu", "--seeds", 1, "--jobs", 2]
    call += ["--data", tiny_data, "-s", "schedule.total_steps=1000000"]
    run = start(tmp_path / "log", *call, run_first=os.setsid)
    try:
        run.wait_until(lambda: len(list(out.glob("stages/pretrain-*/status.json"))) == 2)
        assert not any(map(is_free, out.glob("stages/pretrain-*")))
        run.kill()
        wait_until(lambda: all(map(is_free, out.glob("stages/pretrain-*"))))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.process.pid or 0, signal.SIGKILL)
        run.process.kill()


def is_free(directory: Path) -> bool:
    """Return True if no process writes to the directory."""
    try:
        with store.lock(directory):
            return True
    except BusyError:
        return False


def wait_until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


SCALE_TABLES = "".join(f'[scales.{name}]\nabout = ""\nbase = "mini/docs"\n' for name in SCALES)


def counted(folder: Path, *shapes: str) -> ExperimentPlan:
    """Return the plan of an experiment that counts some shapes."""
    names = ", ".join(f'{shape} = {{ title = "{shape}", shape = "{shape}" }}' for shape in shapes)
    path = folder / "counted.toml"
    path.write_text(f'title = "T"\nsource = "S"\nvariants = {{ {names} }}\n{SCALE_TABLES}')
    return make_plan(recipe.load_experiment(str(path)), ExperimentRequest("smoke", folder / "out", nproc=2))


def test_stages_with_ranks_run_as_processes(tmp_path: Path) -> None:
    """`torchrun` handles the signals of its whole process, so it must not run in the process of the experiment."""
    plan = counted(tmp_path, "albert-base")
    stages = list(plan.stages.values())
    assert run_stages(plan, stages, elsewhere) == 1
    record = store.read_json(plan.result_path(stages[0]))
    assert record["result"]["process"] != os.getpid()


def test_time_left_follows_from_finished_stages_of_the_same_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = counted(tmp_path, "albert-base", "albert-large", "albert-xlarge", "albert-xxlarge")
    stages = list(plan.stages.values())
    run_stages(plan, stages[:1], elsewhere)
    path = plan.result_path(stages[0])
    path.write_text(json.dumps(store.read_json(path) | {"seconds": 3000.0}))
    capsys.readouterr()
    run_stages(plan, stages, elsewhere, max_jobs=2)
    times_left = re.findall(r"\[(\d)/4\] .*; about (.*) left\n", capsys.readouterr().err)
    # The mean of 3,000 s and 0 s, for two stages; then of 3,000 s and twice 0 s, for one; two stages run at a time.
    assert [number for number, _ in times_left] == ["2", "3"], "after the last stage no time is left"
    assert times_left[0][1].startswith("25 min") and times_left[1][1].startswith("8 min")


def elsewhere(arguments: Sequence[str]) -> tuple[int, str]:
    """Print the id of the process that runs the command."""
    return 0, json.dumps({"process": os.getpid()})


def test_output_of_child_processes_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes write to the file descriptor, not to `sys.stdout`."""
    command = [sys.executable, "-c", "import sys; print(sys.argv[1])"]
    module = sys.modules[invoke.__module__]
    monkeypatch.setattr(module, "command_line", lambda: lambda words: subprocess.run([*command, *words], check=True))
    assert invoke(["a"]) == (0, "a\n")


def test_time_limit_during_a_stage_stops_the_next_one(tmp_path: Path) -> None:
    """The running stage handles the signal and finishes; the next one does not start."""
    options = []

    def stage(arguments: Sequence[str]) -> tuple[int, str]:
        before = signal.signal(signal.SIGTERM, lambda *_: options.append(arguments))
        wait_until(lambda: bool(options))
        signal.signal(signal.SIGTERM, before)
        return 0, "{}"

    plan = counted(tmp_path, "albert-base", "albert-large")
    plan = dataclasses.replace(plan, request=dataclasses.replace(plan.request, nproc=1))
    with pytest.raises(Interrupted):
        run_stages(plan, list(plan.stages.values()), stage, max_time=10.0)
    assert len(options) == len(list((tmp_path / "out" / "stages").glob("*.json"))) == 1


def test_stop_during_speed_measurement_ends_the_run(tmp_path: Path, tiny_data: Path) -> None:
    begun = []

    def stage(arguments: Sequence[str]) -> tuple[int, str]:
        begun.append(arguments[0])
        stopping.request_stop()  # as `--max-time` does while a training loop takes its last step
        return 0, '{"recipe_step": {"seconds": 1.0}}'

    request = ExperimentRequest("smoke", tmp_path / "out", data=tiny_data, device="cpu")
    with pytest.raises(Interrupted, match=r"stopped; 1 of \d+ stages in .* are finished"):
        runner.reproduce_experiment("equal-time", request, stage)
    assert begun == ["bench"]


def test_stage_without_device_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_no_device(name: str) -> NoReturn:
        raise ConfigError(f"--device {name}: torch finds no such device here", "")

    monkeypatch.setattr(runner, "choose_device", find_no_device)
    plan = make_plan(recipe.load_experiment("similarity"), ExperimentRequest("smoke", tmp_path, device="cuda"))
    stage = next(stage for stage in plan.stages.values() if stage.kind == "vocabulary")
    assert run_stages(plan, [stage], lambda _: (0, "{}")) == 1
    assert store.read_json(plan.result_path(stage))["device"] == ""


def test_measured_speeds_are_not_earlier_stages(
    tmp_path: Path, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stage(arguments: Sequence[str]) -> tuple[int, str]:
        if arguments[0] == "bench":
            return 0, json.dumps({"recipe_step": {"seconds": 0.1}})
        raise Interrupted("stopped")

    request = ExperimentRequest("smoke", tmp_path / "out", data=tiny_data, device="cpu", seeds=1)
    with pytest.raises(Interrupted):
        runner.reproduce_experiment("equal-time", request, stage)
    assert "already finished" not in capsys.readouterr().err
    with pytest.raises(Interrupted):
        runner.reproduce_experiment("equal-time", request, stage)
    assert re.findall(r"(\d+) of \d+ stages are already finished", capsys.readouterr().err) == ["2"]


def test_missing_text_and_unused_tasks_are_reported_first(
    tmp_path: Path, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = []

    def stage(arguments: Sequence[str]) -> tuple[int, str]:
        begun.append(arguments[0])
        raise Interrupted("stopped")

    missing = tmp_path / "wikki.jsonl"
    request = ExperimentRequest("mini", tmp_path / "out", text=(str(missing),), device="cpu", seeds=1)
    with pytest.raises(InputError, match=re.escape(str(missing))):
        runner.reproduce_experiment("sharing", request, stage)
    assert not begun
    request = dataclasses.replace(request, text=(), data=tiny_data, tasks=tmp_path)
    runner.preview_experiment("sharing", request)
    assert "--tasks is not used: no files are needed for minimal-pairs" in capsys.readouterr().err
    with pytest.raises(Interrupted):
        runner.reproduce_experiment("sharing", request, stage)
    printed = capsys.readouterr().err
    assert "--tasks is not used: no files are needed for minimal-pairs" in printed
    assert printed.count("this run cannot decide") == 1, "one line for all claims with the same reason"
    assert "one seed has no spread" in printed


def test_preview_tasks_from_a_tasks_folder_is_rejected(tmp_path: Path, tiny_data: Path, tiny_glue: Path) -> None:
    request = ExperimentRequest("smoke", tmp_path / "out", data=tiny_data, tasks=tiny_glue / "RTE", dry_run=True)
    with pytest.raises(InputError, match="is the folder of a single task"):
        runner.preview_experiment("sharing", request)


def test_preview_damaged_intermediate_task_skips_the_task(tmp_path: Path, tiny_data: Path, tiny_glue: Path) -> None:
    tasks = tmp_path / "tasks"
    shutil.copytree(tiny_glue, tasks)
    (tasks / "MNLI").mkdir()
    (tasks / "MNLI" / "train.tsv").write_text("index\tsentence1\n0\tA\n", encoding="utf-8")
    request = ExperimentRequest("smoke", tmp_path / "out", data=tiny_data, tasks=tasks, dry_run=True)
    skipped = make_plan(recipe.load_experiment("sharing"), request).skipped
    assert all("MNLI/train.tsv: no column" in skipped[task] for task in ("mrpc", "rte"))


def test_time_limit_covers_all_parts_of_a_run(tmp_path: Path, tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def part(plan: object, stages: object, invoke: object, jobs: int, gpus: int, max_time: float) -> int:
        limits.append(max_time)
        return 0

    monkeypatch.setattr(runner, "run_stages", part)
    monkeypatch.setattr(executor, "is_stop_requested", lambda: False)
    request = ExperimentRequest("smoke", tmp_path / "out", data=tiny_data, device="cpu")
    runner.reproduce_experiment("equal-time", request, invoke, max_time="1h")
    assert len(limits) == 3 and 3600 > limits[0] > limits[1] > limits[2]


def test_list_of_thread_counts_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")
    assert verdicts(reproduce("sizes", tmp_path / "out"))


def test_time_limit_saves_and_exits_with_75(tmp_path: Path, tiny_data: Path) -> None:
    """The run saves and exits with 75; the same command resumes it."""
    # The first step writes the journal, which shows that the training has begun.
    more = ["--data", tiny_data, "--seeds", 1, "-s", "schedule.total_steps=1000000", "-s", "train.log_every=1"]
    begun: list[Path] = []
    seconds = 0.5
    while not begun:  # on a busy machine, no pretraining may begin within this time
        ended = reproduce("similarity", tmp_path / "out", *more, "--max-time", f"{seconds}s", expect=75)
        assert "run the same command again" in ended["err"]
        begun = list((tmp_path / "out" / "stages").glob("pretrain-*/metrics.jsonl"))
        seconds *= 2
    assert all(list(journal.parent.glob("step-*")) for journal in begun), "the step is saved"


def test_failed_stage_prints_one_error(tmp_path: Path, tiny_data: Path) -> None:
    """The stage's title precedes the error of its command, which is the only error and sets the exit code."""
    data = shutil.copytree(tiny_data, tmp_path / "data")
    path = next(data.rglob("train-*.sentences"))
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1, *path.read_bytes()[1:]]))
    more = ["--data", data, "--seeds", 1, "-s", "schedule.total_steps=2"]
    lines = reproduce("similarity", tmp_path / "out", *more, expect=4)["err"].splitlines()
    index = next(number for number, line in enumerate(lines) if line.startswith("error: "))
    assert f"{path}: damaged" in lines[index] and lines[index - 1] == "shared, seed 0: pretraining"
    assert [line.partition(":")[0] for line in lines[index:]] == ["error", "hint"]


def test_sizes_reports_exact_counts(tmp_path: Path) -> None:
    result = reproduce("sizes", tmp_path / "out")
    assert result["values"]["base"]["paper_count"]["0"] == 11_683_584
    assert verdicts(result) == ["holds", "holds", *["does not hold at this scale"] * 2, "holds"]


@pytest.mark.parametrize(
    ("arguments", "code", "ended"),
    [
        ((), 2, "no experiment is named"),
        (("sharing",), 2, "--out is required"),
        (("sharing", "--dry-run", "--seeds", "0"), 2, "at least one seed is needed"),
        (("sharing", "--dry-run", "--jobs", "0"), 2, "greater than or equal to 1"),
        (("sharing", "--dry-run", "--text", "-"), 2, "can be read only once"),
        (("sharing", "--dry-run", "--text", "-@2"), 2, "can be read only once"),
        (("sharing", "--dry-run", "--tasks", "no-such-folder"), 3, "no such folder"),
        (("sharing", "--dry-run", "--tflops", "shared=3"), 2, "has no such variant"),
        (("sharing", "--dry-run", "--tflops", "fast"), 2, "not a number"),
    ],
)
def test_invalid_options_are_rejected(arguments: tuple[str, ...], code: int, ended: str) -> None:
    assert ended in albert("reproduce", *arguments, expect=code).err
