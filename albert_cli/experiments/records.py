"""The result files of stages, read as one typed record for each kind of stage.

The runner writes a file once a stage is finished: the stage's id, title, command and time, and the JSON that the
command printed. Of this JSON the records have only the keys that an experiment uses.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from albert_cli import store
from albert_cli.experiments.plan import ExperimentRequest, Stage

ResultT = TypeVar("ResultT", bound=BaseModel)


class StageRecord(BaseModel, Generic[ResultT]):
    """A finished stage: its time, and the JSON that its command printed; `result` is None if the run diverged.

    `host` and `device` are those that ran its last command, "" if they are unknown.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    stage: str
    title: str
    command: str
    seconds: float
    host: str = ""
    device: str = ""
    diverged: bool = False
    result: ResultT | None = None


class _PrintedResult(BaseModel):
    """The JSON of a command; keys without a field are ignored, NaN and infinity are rejected."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class TimedResult(_PrintedResult):
    """The output of any command; only its time is read."""

    seconds: float | None = None  # None if the command does not print it


class ModelShape(_PrintedResult):
    """The part of a model's configuration that experiments compare."""

    num_hidden_layers: int
    hidden_size: int


class CountedModel(_PrintedResult):
    """A model's parameters as `albert params` counts them."""

    total: int
    paper_count: int
    config: ModelShape


class CountResult(_PrintedResult):
    """The output of `albert params`."""

    models: list[CountedModel]


class StepTime(_PrintedResult):
    """The time of a training step."""

    seconds: float


class SpeedResult(_PrintedResult):
    """The output of `albert bench pretrain`."""

    recipe_step: StepTime


class PretrainOutput(_PrintedResult):
    """The output of `albert pretrain`."""

    steps: int
    seconds: float


class ProbeResult(_PrintedResult):
    """The output of `albert probe`; its other numbers at the top level are in `metrics`.

    `layer_steps` are the distances between each layer's input and output, by measure and layer (Figure 1).
    `without_parts` has, for each metric, the value without each jackknife group of examples.
    """

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    layer_steps: dict[str, list[float]] = {}
    without_parts: dict[str, list[float]] = {}

    @property
    def metrics(self) -> dict[str, float]:
        """The scores and counts: all numbers at the top level of the output that are not fields of this class."""
        extra = self.model_extra or {}
        return {name: float(value) for name, value in extra.items() if isinstance(value, int | float)}


def read_record(
    request: ExperimentRequest, stage: Stage | None, record_type: type[StageRecord[ResultT]]
) -> StageRecord[ResultT] | None:
    """Read a stage's result file; return None if there is no stage or it is not finished."""
    if stage is None or not request.result_path(stage).is_file():
        return None
    return store.read_record(request.result_path(stage), record_type)


def read_result(
    request: ExperimentRequest, stage: Stage | None, record_type: type[StageRecord[ResultT]]
) -> ResultT | None:
    """Read the JSON that a stage's command printed; return None if the stage is missing, unfinished or diverged."""
    record = read_record(request, stage, record_type)
    return record.result if record else None
