"""Send the curves of a run to trackers: TensorBoard, Weights & Biases, MLflow and trackio.

TensorBoard is used wherever it is installed; `train.track` names the other trackers. The environment variables of a
tool choose the project and the server (`WANDB_MODE`, `MLFLOW_TRACKING_URI`, `TRACKIO_DIR`, …). `metrics.jsonl` has
every value that the trackers get. A tracker that fails is therefore reported once and dropped, and training continues.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from albert_cli import config, console, store
from albert_cli.errors import AlbertError, ConfigError
from albert_cli.formatting import first_line

PROJECT: Final = "albert"  # the project in every tool, unless an environment variable of the tool names another one
# A file in the run's directory: each tracker's identifier of this run, so that a resumed run continues its curves.
IDS_FILE: Final = "trackers.json"


class Tracker(Protocol):
    """A service that shows curves; `run_id` is its identifier of the run, "" if it needs none."""

    name: str
    run_id: str

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Add a point to each curve."""

    def close(self) -> None:
        """Write what is buffered."""


class TensorBoard:
    """TensorBoard's event files in `RUN/tensorboard`.

    They are files of the run, so an error of the disk ends the run, as for its other files.
    """

    name = "tensorboard"
    run_id = ""

    def __init__(self, out: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._directory = out / "tensorboard"
        # `purge_step` hides the points that an interrupted run wrote after the step from which it resumes.
        with store.translate_os_errors(self._directory):
            self._writer = SummaryWriter(str(self._directory), purge_step=step + 1)

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Add a point to each curve."""
        with store.translate_os_errors(self._directory):
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is buffered."""
        with store.translate_os_errors(self._directory):
            self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases; with `WANDB_MODE=offline` it is written to `RUN/wandb`, for `wandb sync`."""

    name = "wandb"

    def __init__(self, out: Path, run_id: str | None, recipe: Mapping[str, object]) -> None:
        import wandb

        self.run_id = run_id or uuid.uuid4().hex
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        settings = wandb.Settings(silent=True, console="off")  # the terminal shows our own progress
        self._run = wandb.init(
            project=project,
            id=self.run_id,
            name=str(out),
            dir=out,
            resume="allow",
            config=dict(recipe),
            settings=settings,
        )

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Add a point to each curve; after resuming, Weights & Biases ignores steps that it already has."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Write what is buffered."""
        self._run.finish()


class MLflow:
    """A run of MLflow; `MLFLOW_TRACKING_URI` names the server, the folder or the database.

    A thread sends the points, one request per record, because MLflow repeats a failed request for minutes. MLflow's own
    asynchronous requests (of version 3.17) change the order of the points, and continue after a failure.
    """

    name = "mlflow"

    def __init__(self, out: Path, run_id: str | None, recipe: Mapping[str, object]) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        if run_id is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            experiment = self._client.get_experiment_by_name(name)
            experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(name)
            run_id = self._client.create_run(experiment_id, run_name=str(out)).info.run_id
            values = [Param(key, str(value)) for key, value in config.flatten_values(recipe).items()]
            self._client.log_batch(run_id, params=values)
        else:
            self._client.update_run(run_id, status="RUNNING")
        self.run_id = run_id
        self._thread = ThreadPoolExecutor(1)
        self._requests = deque[Future[object]]()

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Add a point to each curve later; raise the error of an earlier request if it has failed by now."""
        from mlflow.entities import Metric
        from mlflow.utils.time import get_current_time_millis

        while self._requests and self._requests[0].done():
            self._raise_error(self._requests.popleft())
        now = get_current_time_millis()  # type: ignore[no-untyped-call]
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        send = partial(self._client.log_batch, self.run_id, metrics=metrics, synchronous=True)
        self._requests.append(self._thread.submit(send))

    def close(self) -> None:
        """Wait until all points are sent, and mark the run as ended."""
        for request in self._requests:
            self._raise_error(request)
        self._thread.shutdown()
        self._client.set_terminated(self.run_id)

    def _raise_error(self, request: Future[object]) -> None:
        """Wait for a request; if it fails, drop all requests that have not begun, and raise its error."""
        try:
            request.result()
        except Exception:
            self._thread.shutdown(wait=False, cancel_futures=True)
            raise


class Trackio:
    """A run of trackio, in the folder that `TRACKIO_DIR` names."""

    name = "trackio"

    def __init__(self, out: Path, run_id: str | None, recipe: Mapping[str, object]) -> None:
        import trackio

        self.run_id = run_id or f"{out.name}-{uuid.uuid4().hex[:8]}"
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        # Not `Run.finish`: after it, trackio would finish the run a second time at exit.
        self._finish: Callable[[], None] = trackio.finish
        self._run = trackio.init(project=project, name=self.run_id, resume="allow", config=dict(recipe))

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Add a point to each curve."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Write what is buffered."""
        self._finish()


_CLASSES: Final[Mapping[str, Callable[[Path, str | None, Mapping[str, object]], Tracker]]] = {
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
    "trackio": Trackio,
}
_HINTS: Final = {
    "wandb": "run `wandb login`, or set WANDB_MODE=offline and run `wandb sync` later",
    "mlflow": "set MLFLOW_TRACKING_URI to a server, or to file:///FOLDER with MLFLOW_ALLOW_FILE_STORE=true; "
    "a database (sqlite:///FILE) needs `pip install mlflow`",
    "trackio": "set TRACKIO_DIR to a folder that can be written",
}


class Trackers:
    """All trackers of a run. One that fails is reported and dropped, but an `AlbertError`, from the disk, is raised.

    What their libraries print goes to stderr: stdout is for the result of the command, with `--json` only for its JSON.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Add a point to each curve; control characters in its name are replaced."""
        clean = {console.strip_control_chars(name): value for name, value in values.items()}
        for tracker in tuple(self._trackers):
            try:
                with redirect_stdout(sys.stderr):
                    tracker.write(clean, step)
            except AlbertError:
                raise
            except Exception as error:  # any error of a server or a library
                self._trackers.remove(tracker)
                end = f"its curves end before step {step}, training continues"
                console.warn(f"{tracker.name}: {first_line(error)}; {end}")

    def close(self) -> None:
        """Write what the trackers have buffered, and close them."""
        for tracker in self._trackers:
            try:
                with redirect_stdout(sys.stderr):
                    tracker.close()
            except AlbertError:
                raise
            except Exception as error:  # any error of a server or a library
                console.warn(f"{tracker.name}: {first_line(error)}; its last points may be missing")


def open_trackers(out: Path, step: int, names: Sequence[str], recipe: Mapping[str, object]) -> Trackers:
    """Open TensorBoard if it is installed, and the trackers in `names`; a resumed run continues its curves.

    `step` is the step from which the run starts or resumes. Trackers record the values of `recipe` with the run. Raises
    `ConfigError` if a named tracker is not installed or cannot start, for example without a login; the trackers that
    are open already are closed, and the next attempt continues their curves.
    """
    trackers: list[Tracker] = []
    if importlib.util.find_spec("tensorboard") is not None:
        trackers.append(TensorBoard(out, step))
    if not names:
        return Trackers(trackers)
    ids: dict[str, str] = {}
    if (out / IDS_FILE).exists():
        ids = {key: str(value) for key, value in store.read_json(out / IDS_FILE).items()}
    try:
        for name in names:
            tracker = _open_tracker(name, out, ids.get(name), recipe)
            trackers.append(tracker)
            ids[name] = tracker.run_id
            store.write_json(out / IDS_FILE, ids)
    except ConfigError:
        Trackers(trackers).close()
        raise
    return Trackers(trackers)


def _open_tracker(name: str, out: Path, run_id: str | None, recipe: Mapping[str, object]) -> Tracker:
    """Open a named tracker; raise `ConfigError` if it is not installed or cannot start."""
    if importlib.util.find_spec(name) is None:
        raise ConfigError(f"train.track: {name} is not installed", f"pip install 'albert-cli[{name}]'")
    try:
        with redirect_stdout(sys.stderr):
            return _CLASSES[name](out, run_id, recipe)
    except Exception as error:
        raise ConfigError(f"train.track: {name} does not start: {first_line(error)}", _HINTS[name]) from error
