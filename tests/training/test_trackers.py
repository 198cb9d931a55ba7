"""Tests of the trackers: each tool's files contain the curves of the journal."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from albert_cli import journal
from albert_cli.errors import ConfigError
from albert_cli.training.pretrain import dry_run_pretraining, pretrain
from albert_cli.training.trackers import IDS_FILE, PROJECT, Trackers, open_trackers
from tests.helpers.processes import PATIENCE, start

STEPS = ("schedule.total_steps=10", "train.log_every=2")


def train_losses(run: Path) -> list[tuple[int, float]]:
    """Return the steps and losses of a run's journal."""
    return [(r["step"], r["loss"]) for r in journal.read_journal(run / "metrics.jsonl") if "loss" in r]


def assert_curve_of_journal(curve: list[tuple[int, float]], run: Path) -> None:
    """Compare the curve of a tracker with the journal, which rounds to six digits."""
    steps, losses = zip(*train_losses(run), strict=True)
    assert [step for step, _ in curve] == list(steps)
    assert [loss for _, loss in curve] == pytest.approx(losses, rel=1e-5)


def leveldb_log_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a file in LevelDB's log format, after wandb's header."""
    wandb_header = 7  # bytes
    record_header = 7  # bytes: checksum, length and kind
    position = wandb_header
    parts = b""
    while position + record_header <= len(data):
        left_in_block = 32768 - position % 32768  # a record's header is not split across blocks of this size
        if left_in_block < record_header:
            position += left_in_block
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + record_header : position + record_header + length]
        position += record_header + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


def test_run_writes_tensorboard_curves(recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = tmp_path / "run"
    pretrain(str(recipe), tiny_data, run, STEPS, device="cpu")
    events = accumulator.EventAccumulator(str(run / "tensorboard")).Reload()
    assert {"train/loss", "train/mlm_accuracy", "train/mfu", "heldout/mlm_loss"} <= set(events.Tags()["scalars"])
    curve = [(e.step, e.value) for e in events.Scalars("train/loss")]
    assert_curve_of_journal(curve, run)


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package, whose runs are in files of the test's folder."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    return pytest.importorskip("mlflow")


def test_run_writes_mlflow_curves(recipe: Path, tiny_data: Path, tmp_path: Path, mlflow: Any) -> None:
    run = tmp_path / "run"
    pretrain(str(recipe), tiny_data, run, [*STEPS, 'train.track=["mlflow"]'], device="cpu")
    client = mlflow.tracking.MlflowClient()
    run_id = json.loads((run / IDS_FILE).read_text())["mlflow"]
    curve = [(m.step, m.value) for m in client.get_metric_history(run_id, "train/loss")]
    assert_curve_of_journal(curve, run)
    logged = client.get_run(run_id)
    assert logged.info.status == "FINISHED"
    assert logged.data.params["train.batch_size"]


def test_dry_run_opens_no_tracker(recipe: Path, tiny_data: Path, tmp_path: Path, mlflow: Any) -> None:
    dry_run_pretraining(str(recipe), tiny_data, tmp_path / "run", ['train.track=["mlflow"]'], device="cpu")
    assert mlflow.tracking.MlflowClient().get_experiment_by_name(PROJECT) is None


def redirect_stderr(path: Path) -> None:
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), 2)


def test_run_writes_trackio_curves(recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    run = tmp_path / "run"
    arguments = ["pretrain", recipe, "--data", tiny_data, "--out", run, "--device", "cpu", "--json"]
    for override in (*STEPS, 'train.track=["trackio"]'):
        arguments += ["-s", override]
    environment = {"TRACKIO_DIR": str(tmp_path / "trackio")}  # read when trackio is imported
    errors = tmp_path / "errors"
    process = start(tmp_path / "out", *arguments, environment=environment, run_first=partial(redirect_stderr, errors))
    assert process.wait() == 0, errors.read_text(encoding="utf-8")
    assert json.loads(process.printed_text())["steps"] == train_losses(run)[-1][0]
    with sqlite3.connect(tmp_path / "trackio" / "albert.db") as database:
        rows = [(step, json.loads(text)) for step, text in database.execute("SELECT step, metrics FROM metrics")]
    curve = [(step, values["train/loss"]) for step, values in rows if "train/loss" in values]
    assert_curve_of_journal(sorted(curve), run)


def test_run_writes_wandb_curves(
    recipe: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: Any = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "run"
    pretrain(str(recipe), tiny_data, run, [*STEPS, 'train.track=["wandb"]'], device="cpu")
    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    points: dict[int, dict[str, Any]] = {}
    deadline = time.monotonic() + PATIENCE
    # A process of wandb writes the file, on a busy machine later.
    while len(points) < len(train_losses(run)) and time.monotonic() < deadline:
        for data in leveldb_log_records(file.read_bytes()):
            record = messages.Record.FromString(data)
            values = {(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
            if values:
                points[values["_step"]] = values
        time.sleep(0.1)
    curve = [(step, v["train/loss"]) for step, v in points.items() if "train/loss" in v]
    assert_curve_of_journal(curve, run)


def test_resumed_run_keeps_its_mlflow_run(tmp_path: Path, mlflow: Any) -> None:
    for step in (0, 1):
        trackers = open_trackers(tmp_path, step, ["mlflow"], {"train": {"seed": 1}})
        trackers.write({"train/loss": 2.0 - step}, step)
        trackers.close()
    run_id = json.loads((tmp_path / IDS_FILE).read_text())["mlflow"]
    history = mlflow.tracking.MlflowClient().get_metric_history(run_id, "train/loss")
    assert [(m.step, m.value) for m in history] == [(0, 2.0), (1, 1.0)]


@pytest.fixture
def mlflow_requests(mlflow: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A server of MLflow that answers a request with metrics once `may_answer` is set; it fails if `error` is set.

    `steps` and `sizes` are the steps and the numbers of metrics of the requests so far.
    """
    requests = SimpleNamespace(may_answer=threading.Event(), error=None, steps=[], sizes=[])

    def log_batch(client: object, run_id: str, metrics: Sequence[Any] = (), **arguments: Any) -> None:
        if metrics:
            requests.steps.append(metrics[0].step)
            requests.sizes.append(len(metrics))
            requests.may_answer.wait()
            if requests.error is not None:
                raise requests.error

    monkeypatch.setattr(mlflow.tracking.MlflowClient, "log_batch", log_batch)
    yield requests
    requests.may_answer.set()


def test_mlflow_gets_a_request_per_record_and_none_is_awaited(tmp_path: Path, mlflow_requests: SimpleNamespace) -> None:
    trackers = open_trackers(tmp_path, 0, ["mlflow"], {})
    for step in range(1, 4):
        trackers.write({"train/loss": 2.0, "train/mfu": 0.5}, step)  # returns before the server answers
    mlflow_requests.may_answer.set()
    trackers.close()
    assert (mlflow_requests.steps, mlflow_requests.sizes) == ([1, 2, 3], [2, 2, 2])


def test_failing_mlflow_is_reported_once_and_sends_no_more(
    tmp_path: Path, mlflow_requests: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    mlflow_requests.error = ConnectionError("no server")
    trackers = open_trackers(tmp_path, 0, ["mlflow"], {})
    trackers.write({"train/loss": 2.0}, 1)
    mlflow_requests.may_answer.set()
    deadline = time.monotonic() + PATIENCE
    step = 1
    while not (printed := capsys.readouterr().err) and time.monotonic() < deadline:
        step += 1
        trackers.write({"train/loss": 2.0}, step)
        time.sleep(0.01)
    num_requests = len(mlflow_requests.steps)
    trackers.write({"train/loss": 2.0}, step + 1)
    trackers.close()
    message = f"warning: mlflow: no server; its curves end before step {step}, training continues\n"
    assert printed + capsys.readouterr().err == message
    assert len(mlflow_requests.steps) == num_requests


def test_mlflow_that_fails_at_the_end_is_reported(
    tmp_path: Path, mlflow_requests: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    mlflow_requests.error = ConnectionError("no server")
    trackers = open_trackers(tmp_path, 0, ["mlflow"], {})
    for step in (1, 2):
        trackers.write({"train/loss": 2.0}, step)
    mlflow_requests.may_answer.set()
    trackers.close()
    assert capsys.readouterr().err == "warning: mlflow: no server; its last points may be missing\n"


def test_lines_of_mlflow_go_to_stderr(
    tmp_path: Path, mlflow: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class PrintingClient(mlflow.tracking.MlflowClient):  # type: ignore[misc]
        def log_batch(self, *args: Any, **kwargs: Any) -> None:
            print("logged parameters")
            super().log_batch(*args, **kwargs)

        def set_terminated(self, *args: Any, **kwargs: Any) -> None:
            print("View run")  # as for a run on a server
            super().set_terminated(*args, **kwargs)

    monkeypatch.setattr(mlflow.tracking, "MlflowClient", PrintingClient)
    open_trackers(tmp_path, 0, ["mlflow"], {}).close()
    printed = capsys.readouterr()
    assert printed.out == ""  # stdout is for the result of the command
    assert "logged parameters" in printed.err
    assert "View run" in printed.err


def test_hint_for_mlflow_has_variables_that_work(tmp_path: Path, mlflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    with pytest.raises(ConfigError) as error:
        open_trackers(tmp_path, 0, ["mlflow"], {})  # a folder is allowed only by the variable
    values = dict(re.findall(r"(MLFLOW_ALLOW_FILE_STORE)=(\w+)", str(error.value.hint)))
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    open_trackers(tmp_path, 0, ["mlflow"], {}).close()


def test_tracker_that_cannot_start_closes_the_others(
    tmp_path: Path, mlflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb: Any = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nothing://")
    with pytest.raises(ConfigError, match="mlflow does not start"):
        open_trackers(tmp_path, 0, ["wandb", "mlflow"], {})
    assert wandb.run is None
    assert list(json.loads((tmp_path / IDS_FILE).read_text())) == ["wandb"], "the next attempt continues it"


def test_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"train\.track: wandb is not installed") as error:
        open_trackers(tmp_path, 0, ["wandb"], {})
    assert error.value.hint == "pip install 'albert-cli[wandb]'"


def test_failing_tracker_is_reported_once_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        name = "broken"
        run_id = ""
        calls = 0

        def write(self, values: object, step: int) -> None:
            self.calls += 1
            raise ConnectionError("no server\nat all")

        def close(self) -> None:
            raise AssertionError

    broken = Broken()
    trackers = Trackers([broken])
    trackers.write({"train/loss": 1.0}, 7)
    trackers.write({"train/loss": 1.0}, 8)
    trackers.close()
    assert broken.calls == 1
    assert capsys.readouterr().err == "warning: broken: no server; its curves end before step 7, training continues\n"
