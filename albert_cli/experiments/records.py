"""The result files of stages, read as one typed record for each kind of stage."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from albert_cli import store
from albert_cli.experiments.plan import ExperimentPlan, Stage

ResultT = TypeVar("ResultT", bound=BaseModel)


class StageRecord(BaseModel, Generic[ResultT]):
    """A finished stage: its time, and the JSON that its command printed unless the run diverged."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    stage: str
    title: str
    command: str
    seconds: float
    diverged: bool = False
    result: ResultT | None = None


class _PrintedResult(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class AnyResult(_PrintedResult):
    """The result of a stage of any kind."""

    seconds: float | None = None


class ModelShape(_PrintedResult):
    """A model's configuration as `albert params` prints it."""

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
    """The output of `albert probe`; every number without a field here is a metric.

    `layer_steps`: how far each layer moves its input, by measure (Figure 1). `without_parts`: the values of each metric
    with one group of examples left out, for its standard error.
    """

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    layer_steps: dict[str, list[float]] = {}
    without_parts: dict[str, list[float]] = {}

    @property
    def metrics(self) -> dict[str, float]:
        """All numbers that the probe measured."""
        extra = self.model_extra or {}
        return {name: float(value) for name, value in extra.items() if isinstance(value, int | float)}


def read_record(
    plan: ExperimentPlan, stage: Stage | None, kind: type[StageRecord[ResultT]]
) -> StageRecord[ResultT] | None:
    """Read a stage's result file; None if the stage is not finished."""
    if stage is None or not plan.is_finished(stage):
        return None
    return store.read_record(plan.result_path(stage), kind)


def read_result(plan: ExperimentPlan, stage: Stage | None, kind: type[StageRecord[ResultT]]) -> ResultT | None:
    """Read what a stage's command printed; None if the stage is not finished or diverged."""
    record = read_record(plan, stage, kind)
    return record.result if record else None
