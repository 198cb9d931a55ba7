"""Tests of runs that are stopped, damaged or changed: the same command ends in the same weights."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from albert_cli import journal, matmul, store
from albert_cli.errors import CheckpointError, ConfigError, DivergedError
from albert_cli.model import hub, loading
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import pack
from albert_cli.tasks.classification import TextExample
from albert_cli.tasks.glue import GLUE
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training import checkpoint, device
from albert_cli.training.objectives import PretrainingJob
from albert_cli.training.pretrain import pretrain
from albert_cli.training.task_recipe import load_recipe as resolve_task
from tests.helpers.namespaces import enter_namespaces, has_namespaces
from tests.helpers.processes import albert, start, terminate_at_step
from tests.helpers.runs import (
    LAST,
    checkpoint_hashes,
    copy_run,
    list_steps,
    poison_loss,
    read_curve,
    read_status,
    weights_hash,
)

TEN_STEPS = "schedule.total_steps=10"
STEP_10 = "step-00000010"
MODEL_FILES = ("config.json", "model.safetensors", "spiece.model", "tokenizer.json", "tokenizer_config.json")
FILES = (*MODEL_FILES, "optimizer.safetensors", "state.json", "recipe.toml", "token_counts.safetensors")


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory, recipe: Path, tiny_data: Path) -> Path:
    """The directory of an uninterrupted run of ten steps; tests must not change it."""
    out = tmp_path_factory.mktemp("short") / "out"
    pretrain(str(recipe), tiny_data, out, [TEN_STEPS], device="cpu")
    return out


# ---------------------------------------------------------------- a run


def test_pretrain_writes_promised_files(finished: Path) -> None:
    assert list_steps(finished) == [25, 30]
    status = read_status(finished)
    assert status.pop("host") and status.pop("command").startswith("albert")
    assert (status.pop("working_directory"), status.pop("directory")) == (str(Path.cwd()), str(finished))
    assert status == {"state": "done", "exit_code": 0, "step": 30, "total_steps": 30, "message": ""}
    assert not [p for p in finished.iterdir() if p.name.startswith(".") and p.name != ".lock"]
    manifest = store.verify(finished / LAST, "checkpoint")
    assert set(manifest.files) == set(FILES)
    assert "held-out mlm loss" in (finished / LAST / "README.md").read_text()
    logged = [(r["step"], "eval" in r) for r in read_curve(finished)]
    steps = [(5, False), (10, False), (15, False), (15, True), (20, False), (25, False), (30, False), (30, True)]
    assert logged == steps
    losses = [r["loss"] for r in read_curve(finished) if "loss" in r]
    assert losses[-1] < losses[0]
    rates = [r["lr"] for r in journal.read_journal(finished / "metrics.jsonl") if "lr" in r]
    # The decay counts from step 0, so after the warmup the rate is below the peak.
    assert max(rates) < 1e-2
    assert rates[-1] == min(rates)


def test_pretrain_finished_run_repeats_nothing(finished: Path, recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    run = copy_run(finished, tmp_path)
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*") if p.parent.name.startswith("step-")}
    result = pretrain(str(recipe), tiny_data, run, device="cpu")
    assert result.steps == 30 and result.checkpoint == run / LAST
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert read_curve(run) == read_curve(finished)


@pytest.mark.parametrize("name", ["grad_norm", "tokens_per_second", "unigram_entropy", "mlm_accuracy"])
def test_pretrain_damaged_journal_line_is_tolerated(
    name: str, finished: Path, recipe: Path, tiny_data: Path, tmp_path: Path
) -> None:
    run = copy_run(finished, tmp_path)
    path = run / "metrics.jsonl"
    path.write_text(path.read_text().replace(f'"{name}"', f'"{name}x"'))
    assert pretrain(str(recipe), tiny_data, run, device="cpu").steps == 30


def test_pretrain_jumping_clock_does_not_change_the_run(
    finished: Path, recipe: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_run(finished, tmp_path)
    jumps = random.Random(1)
    shutil.rmtree(run / LAST)
    for name, unit in (("time", 1), ("time_ns", 10**9)):
        monkeypatch.setattr(time, name, lambda unit=unit: jumps.choice((0, 4 * 10**9)) * unit)
    assert pretrain(str(recipe), tiny_data, run, ["train.save_every=1h"], device="cpu").steps == 30
    assert weights_hash(run) == weights_hash(finished) and read_curve(run) == read_curve(finished)
    assert list_steps(run) == [25, 30]
    assert 0 < checkpoint.read_state(run / LAST).seconds < 3600
    assert all(0 < r["seconds"] < 3600 for r in journal.read_journal(run / "metrics.jsonl") if "seconds" in r)


def test_pretrain_deterministic_is_same_on_cpu(
    recipe: Path, tiny_data: Path, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = PretrainingJob.loss_sums
    enabled = set()

    def loss_sums(self: PretrainingJob, data: Any) -> Any:
        enabled.add(torch.are_deterministic_algorithms_enabled())
        return original(self, data)

    monkeypatch.setattr(PretrainingJob, "loss_sums", loss_sums)
    pretrain(str(recipe), tiny_data, tmp_path / "run", [TEN_STEPS, "train.deterministic=true"], device="cpu")
    assert enabled == {True}
    assert not torch.are_deterministic_algorithms_enabled()
    assert checkpoint_hashes(tmp_path / "run", STEP_10) == checkpoint_hashes(short, STEP_10)
    with pytest.raises(ConfigError, match=r"train\.deterministic: True -> False"):
        pretrain(str(recipe), tiny_data, tmp_path / "run", [TEN_STEPS], device="cpu")


@pytest.mark.parametrize("step", [25, 30])
def test_transformers_reads_every_checkpoint(step: int, finished: Path) -> None:
    directory = finished / f"step-{step:08d}"
    model, info = transformers.AutoModelForPreTraining.from_pretrained(directory, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    texts = [("Kra bade wi.", "Luma figo."), ("Ste.", "Nepi roro suta vewi.")]
    inputs = tokenizer([a for a, _ in texts], [b for _, b in texts], padding=True, return_tensors="pt")
    examples = [TextExample(a, b, None, "") for a, b in texts]
    features = GLUE["mrpc"].encode(examples, Vocabulary.load(directory), 48)
    packed, _ = features.batch(np.arange(2))
    mask = inputs["attention_mask"].bool()
    assert inputs["input_ids"][mask].tolist() == packed.ids.tolist()
    assert inputs["token_type_ids"][mask].tolist() == packed.segment_ids.tolist()
    checkpoint = hub.read_checkpoint(directory)
    ours = PretrainingModel(checkpoint.config).eval()
    loading.load_weights(ours, checkpoint, loading.LoadPolicy.EVERYTHING)
    with torch.inference_mode():
        expected = model.eval()(**inputs).sop_logits
        logits = ours(pack(packed, torch.device("cpu"))).sentence_order
    assert float((logits - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


def test_pretrain_deletes_old_checkpoints(recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    overrides = ["schedule.total_steps=8", "train.keep=3", "train.save_every=2"]
    pretrain(str(recipe), tiny_data, tmp_path / "run", overrides, device="cpu")
    assert list_steps(tmp_path / "run") == [4, 6, 8]
    # As if the run was killed after it had written the last checkpoint and before it deleted the oldest.
    shutil.copytree(tmp_path / "run" / "step-00000004", tmp_path / "run" / "step-00000002")
    pretrain(str(recipe), tiny_data, tmp_path / "run", overrides, device="cpu")
    assert list_steps(tmp_path / "run") == [4, 6, 8]


# ---------------------------------------------------------------- interruptions


def test_pretrain_signal_saves_current_step(command: Sequence[object], finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ("-s", "train.save_every=0", "-s", "train.log_every=1")
    process = start(tmp_path / "log", *command, "--out", run, *settings, run_first=partial(terminate_at_step, 7))
    assert process.wait() == 75
    assert "run the same command again to resume" in process.printed_text()
    (step,) = list_steps(run)
    assert step == 7, "the step that has begun is finished"
    status = read_status(run)
    assert status.pop("host") and status.pop("command").startswith("albert pretrain ")
    assert (status.pop("working_directory"), status.pop("directory")) == (str(Path.cwd()), str(run))
    message = f"{run}: stopped after step {step}"
    assert status == {"state": "interrupted", "exit_code": 75, "step": step, "total_steps": 30, "message": message}
    assert [r["step"] for r in read_curve(run)] == list(range(1, step + 1))  # every step was logged
    # Without the two overrides: `save_every` and `log_every` may change.
    code, printed = albert(tmp_path / "log", *command, "--out", run, "--resume", "must")
    assert code == 0, printed
    assert f"resuming from step {step}" in printed
    assert weights_hash(run) == weights_hash(finished)


def test_pretrain_locked_directory_raises(command: Sequence[object], tmp_path: Path) -> None:
    run = tmp_path / "run"
    call = (*command, "--out", run, "-s", "schedule.total_steps=100000")
    first = start(tmp_path / "log", *call)
    first.wait_until(lambda: (run / "metrics.jsonl").exists())
    code, printed = albert(tmp_path / "second", *call)
    assert code == 6
    assert "another run is writing here" in printed
    assert read_status(run)["state"] == "running"
    assert first.process.is_alive()
    assert first.kill() == -9
    # The lock of a killed process does not stop the next one.
    resumed = start(tmp_path / "log", *call)
    resumed.wait_until(lambda: "resuming from step" in resumed.printed_text() or bool(list_steps(run)))
    resumed.kill()


def test_status_of_running_run_has_the_last_step(command: Sequence[object], tmp_path: Path) -> None:
    run = tmp_path / "run"
    overrides = ("-s", "schedule.total_steps=100000", "-s", "train.log_every=3", "-s", "train.save_every=1000000")
    process = start(tmp_path / "log", *command, "--out", run, *overrides)
    assert process.reaches(lambda: (run / "status.json").exists() and read_status(run)["step"] >= 6)
    process.kill()
    status = read_status(run)
    assert status["state"] == "running" and status["step"] % 3 == 0
    assert status["step"] <= read_curve(run)[-1]["step"] <= status["step"] + 3


def test_pretrain_resumed_run_keeps_auto_values(
    recipe: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values stay on a machine that would choose others, although the command repeats "auto"."""
    run = tmp_path / "run"
    uninterrupted = tmp_path / "uninterrupted"
    overrides_with_auto = [TEN_STEPS, "train.precision=auto"]
    monkeypatch.setattr(device, "_MIN_BF16_WIDTH", 1)
    monkeypatch.setattr(device, "measure_bf16_speedup", lambda: 2.0)
    pretrain(str(recipe), tiny_data, run, overrides_with_auto, device="cpu")
    shutil.copytree(run, uninterrupted)
    for path in (run / "recipe.toml", *run.glob("step-*/recipe.toml")):
        assert 'precision = "bf16"\n' in path.read_text() and '"auto"' not in path.read_text()
    shutil.rmtree(run / STEP_10)
    monkeypatch.setattr(device, "measure_bf16_speedup", lambda: 0.5)
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 64)
        pretrain(str(recipe), tiny_data, run, overrides_with_auto, device="cpu")
    torch.set_num_threads(threads)  # the run has set it to the 64 of the patch
    assert checkpoint_hashes(run, STEP_10) == checkpoint_hashes(uninterrupted, STEP_10)
    assert (run / "recipe.toml").read_text() == (uninterrupted / "recipe.toml").read_text()
    overrides = [*overrides_with_auto, "train.threads=2"]  # allowed, because threads change only the rounding
    assert pretrain(str(recipe), tiny_data, run, overrides, device="cpu").steps == 10
    assert "threads = 2\n" in (run / "recipe.toml").read_text()


@pytest.mark.skipif(not matmul.has_onednn(), reason="this torch has no oneDNN")
def test_pretrain_onednn_resumes_to_same_bytes(
    recipe: Path, tiny_data: Path, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "_MIN_FLOPS", 0.0)
    monkeypatch.setattr(device, "measure_onednn_speedup", lambda *_: 2.0)
    run = tmp_path / "run"
    result = pretrain(str(recipe), tiny_data, run, [TEN_STEPS], device="cpu")
    assert 'matmul = "onednn"' in (run / "recipe.toml").read_text()
    for expected, record in zip(read_curve(short), read_curve(run), strict=True):
        assert record.get("loss", 0) == pytest.approx(expected.get("loss", 0), abs=1e-4)
    monkeypatch.setattr(device, "measure_onednn_speedup", lambda *_: 0.5)
    shutil.rmtree(run / STEP_10)
    assert pretrain(str(recipe), tiny_data, run, [TEN_STEPS], device="cpu").model_sha256 == result.model_sha256


# ---------------------------------------------------------------- recipes and data that do not fit, damaged checkpoints


def test_pretrain_other_recipe_raises_with_differences(
    finished: Path, recipe: Path, tiny_data: Path, tmp_path: Path
) -> None:
    run = copy_run(finished, tmp_path)
    with pytest.raises(ConfigError) as raised:
        pretrain(str(recipe), tiny_data, run, ["optimizer.lr=0.5", "train.seed=4"], device="cpu")
    assert "optimizer.lr: 0.01 -> 0.5; train.seed: 0 -> 4" in raised.value.message
    assert raised.value.exit_code == 2
    assert read_curve(run) == read_curve(finished) and read_status(run)["state"] == "done"
    pretrain(str(recipe), tiny_data, run, ["train.keep=1", "train.log_every=7", "train.save_every=1m"], device="cpu")


def test_pretrain_other_data_raises(finished: Path, recipe: Path, tiny_vocabulary: Path, tmp_path: Path) -> None:
    from albert_cli.data import build
    from albert_cli.data.records import BuildSettings

    (tmp_path / "other.txt").write_text("Another text. With few words.\n\nAnd one more. For the other part.\n" * 9)
    other_data = tmp_path / "other"
    build.build_data([str(tmp_path / "other.txt")], tiny_vocabulary, other_data, BuildSettings(holdout=0.2), workers=1)
    run = copy_run(finished, tmp_path)
    store.write_json(run / "status.json", {**read_status(run), "command": "albert pretrain tiny --data first"})
    with pytest.raises(ConfigError, match=r"was started with other data by: .* --data first") as raised:
        pretrain(str(recipe), other_data, run, device="cpu")
    (override,) = re.findall(r"-s (warm_start\S+)", str(raised.value.hint))
    further = pretrain(str(recipe), other_data, tmp_path / "further", [override, "schedule.total_steps=31"])
    assert further.steps == 31


# The manifest has the hashes of all files of the checkpoint. Resuming also parses the first five files of this list.
@pytest.mark.parametrize(
    "file", ["model.safetensors", "optimizer.safetensors", "state.json", "recipe.toml", "manifest.json", "spiece.model"]
)
def test_pretrain_damaged_checkpoint_is_skipped(
    file: str, finished: Path, recipe: Path, tiny_data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = copy_run(finished, tmp_path)
    content = bytearray((run / LAST / file).read_bytes())
    bit = random.Random(file).randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    (run / LAST / file).write_bytes(content)
    pretrain(str(recipe), tiny_data, run, device="cpu")
    printed = capfd.readouterr().err
    assert f"{LAST}/{file}" in printed
    assert "resuming from step 25" in printed
    assert weights_hash(run) == weights_hash(finished)
    assert read_curve(run) == read_curve(finished)
    assert (run / f"damaged-{LAST}" / file).read_bytes() == content


def test_pretrain_all_checkpoints_damaged_restarts(
    short: Path, recipe: Path, tiny_data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = copy_run(short, tmp_path)
    for step in run.glob("step-*"):
        (step / "state.json").write_text("{}")
    pretrain(str(recipe), tiny_data, run, [TEN_STEPS], device="cpu")
    assert "no checkpoint is intact, so the run restarts" in capfd.readouterr().err
    assert checkpoint_hashes(run, STEP_10) == checkpoint_hashes(short, STEP_10)
    assert read_curve(run) == read_curve(short)
    assert len(list(run.glob("damaged-step-*"))) == 2


def test_pretrain_recipe_or_data_that_does_not_fit_raises(recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    for override, message in (
        ("model.vocab_size=301", "the data's vocabulary has 300 pieces"),
        ("data.max_seq_length=64", "only 48 positions"),
        ("train.batch_sice=4", "unknown key"),
    ):
        with pytest.raises(ConfigError, match=message):
            pretrain(str(recipe), tiny_data, tmp_path / "run", [override], device="cpu")
    damaged = Path(shutil.copytree(tiny_data, tmp_path / "data"))
    shard = next(damaged.glob("shards/**/*.ids"))
    shard.write_bytes(shard.read_bytes()[:-2] + b"\1\1")
    with pytest.raises(CheckpointError, match="ids"):
        pretrain(str(recipe), damaged, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_pretrain_warmup_longer_than_the_run_raises(recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the learning rate would never reach its peak"):
        pretrain(str(recipe), tiny_data, tmp_path / "run", ["schedule.warmup_steps=31"], device="cpu")
    with pytest.raises(ConfigError, match=r"warmup_steps is 1,256 and schedule\.total_steps 300"):
        resolve_task("sst2", ["schedule.total_steps=300"])


# ---------------------------------------------------------------- divergence


def test_pretrain_nan_loss_stops_before_update(
    recipe: Path, tiny_data: Path, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    # `poison_loss` replaces these methods without monkeypatch; patching them here first lets `undo` restore them.
    for name in ("sample_step", "loss_sums"):
        monkeypatch.setattr(PretrainingJob, name, getattr(PretrainingJob, name))
    poison_loss(7)  # steps are counted from 0 here, from 1 in messages
    with pytest.raises(DivergedError, match="step 8: the loss or gradient is not finite") as error:
        pretrain(str(recipe), tiny_data, run, [TEN_STEPS], device="cpu")
    assert f"the last checkpoint is {run / 'step-00000005'}" in str(error.value.hint)
    assert (read_status(run)["state"], read_status(run)["exit_code"], read_status(run)["step"]) == ("diverged", 5, 5)
    monkeypatch.undo()
    store.verify(run / "step-00000005")
    pretrain(str(recipe), tiny_data, run, [TEN_STEPS], device="cpu")
    assert checkpoint_hashes(run, STEP_10) == checkpoint_hashes(short, STEP_10)


def test_pretrain_huge_learning_rate_exits_with_5(command: Sequence[object], tmp_path: Path) -> None:
    code, printed = albert(tmp_path / "log", *command, "--out", tmp_path / "run", "-s", "optimizer.lr=1e38")
    assert code == 5 and "lower optimizer.lr" in printed
    assert read_status(tmp_path / "run")["exit_code"] == 5


def test_pretrain_infinite_gradient_names_the_tensor(
    recipe: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["schedule.total_steps=5"]
    original = PretrainingJob.loss_sums
    calls = iter(range(1000))

    def loss_sums(self: PretrainingJob, data: Any) -> Any:
        sums = original(self, data)
        if next(calls) >= 6:  # a step has two micro-batches, so this is from step 4 on
            bias = self.model.order.bias
            # This adds 0 to the loss and infinity to the gradient.
            sums["order_loss"] = sums["order_loss"] + (bias.sum() - bias.sum().detach()) * 1e38 * 1e38
        return sums

    monkeypatch.setattr(PretrainingJob, "loss_sums", loss_sums)
    with pytest.raises(DivergedError, match=r"step 4: .*grad_norm (nan|inf); order\.bias\)"):
        pretrain(str(recipe), tiny_data, tmp_path / "run", overrides, device="cpu")
    report = store.read_json(tmp_path / "run" / "diverged.json")
    assert (report["step"], report["not_finite"]) == (4, ["order.bias"])
    monkeypatch.undo()
    pretrain(str(recipe), tiny_data, tmp_path / "run", overrides, device="cpu")
    assert not (tmp_path / "run" / "diverged.json").exists()


# ---------------------------------------------------------------- a full disk


def attempt_on_small_disk(disk: Path) -> None:
    """Prepare a process to run its command twice: on a disk that is too small, and after the disk has grown.

    `start` calls this function before the command. In each of two forked children it returns, so that the child runs
    the command. The parent waits, prints the child's exit code and files, and exits after the second child.
    """
    enter_namespaces()
    for mount in (["-t", "tmpfs", "-o", "size=700k"], ["-o", "remount,size=50m"]):
        subprocess.run(["mount", *mount, "tmpfs", disk], check=True)
        if not (child := os.fork()):
            return  # to the command
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"code": code, "files": [path.name for path in (disk / "run").iterdir()]}))
    print(weights_hash(disk / "run"))
    raise SystemExit


@pytest.mark.skipif(not has_namespaces(), reason="no user namespaces (unshare -rm) to mount a small disk in")
def test_pretrain_full_disk_keeps_last_checkpoint(command: Sequence[object], finished: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    run = start(tmp_path / "log", *command, "--out", disk / "run", run_first=partial(attempt_on_small_disk, disk))
    assert run.wait() == 0, run.printed_text()
    printed = run.printed_text()
    attempts = [json.loads(line) for line in printed.splitlines() if line.startswith('{"code": ')]
    assert [attempt["code"] for attempt in attempts] == [4, 0], printed
    assert not [name for attempt in attempts for name in attempt["files"] if name.endswith(".tmp")]
    message = re.search(r"step-\d+: the disk is full \(([\d.]+) MB needed, ([\d.]+) MB free\)", printed)
    assert message is not None, printed
    assert float(message[1]) > float(message[2]), message[0]
    assert "resuming from step" in printed
    assert weights_hash(finished) in printed


def test_finished_run_on_a_full_disk_prints_its_result(
    recipe: Path, tiny_data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_run(finished, tmp_path)
    call = (str(recipe), tiny_data, run)
    first = pretrain(*call, device="cpu")
    monkeypatch.setattr(store, "free_bytes", lambda path: 1000)
    assert pretrain(*call, device="cpu") == first
    shutil.rmtree(run / LAST)
    with pytest.raises(CheckpointError, match="the checkpoints need"):
        pretrain(*call, device="cpu")
