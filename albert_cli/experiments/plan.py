"""An experiment resolved at a scale: stages that each make one directory from others, and where their results lie.

A stage is one `albert` command. Its name is a hash of everything that decides its result, so that experiments in one
directory share what they have in common: the vocabulary, the data, and every run that two of them need.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasPath, Field

from albert_cli.data.shards import read_data_facts
from albert_cli.experiments.recipe import Experiment, ExperimentScale, PaperClaim, ScaleName
from albert_cli.results import Number, Numbers, Record, Result
from albert_cli.training.pretrain_recipe import PretrainRecipe

StageKind = Literal["count", "vocabulary", "data", "table", "speed", "pretrain", "probe", "task"]
OUT = "{OUT}"  # in the words of a command: the stage's own directory, which is named after its facts


@dataclass(frozen=True)
class ExperimentRequest:
    """What is asked for: an experiment's scale, where its files go, and what it is run on.

    `text` and `extra_text` replace the scale's; `data` is a finished data directory instead of text. `tasks` is the
    folder with the tasks' files. `seeds` and `changes` (`section.key=value`) replace what the recipe says; `tflops` is
    the measured speed of a device (by variant, or under "" for all), for the plan alone.
    """

    scale: ScaleName
    out: Path
    text: tuple[str, ...] = ()
    extra_text: tuple[str, ...] = ()
    data: Path | None = None
    tasks: Path | None = None
    seeds: int | None = None
    changes: tuple[str, ...] = ()
    device: str = "auto"
    nproc: int = 1
    dry_run: bool = False
    tflops: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Cost:
    """What a stage takes: parameters of its model, updates, tokens and FLOPs (at most), bytes of disk."""

    parameters: int
    steps: int
    tokens: int
    flops: float
    disk_bytes: int


@dataclass(frozen=True)
class Stage:
    """One command, the facts that decide what it makes, and the stages whose directories it reads."""

    kind: StageKind
    title: str
    facts: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    cost: Cost | None = None

    @cached_property
    def id(self) -> str:
        """`KIND-` and 12 hex digits of the facts."""
        facts = json.dumps([self.kind, self.facts, self.needs], sort_keys=True, default=str)
        return f"{self.kind}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"

    @property
    def command(self) -> str:
        """As one types it in a shell."""
        program = ["python", "-m", "albert_cli.experiments.recall_table"] if self.kind == "table" else ["albert"]
        return shlex.join([*program, *self.argv])


@dataclass(frozen=True)
class VariantRun:
    """A variant with one seed: its resolved recipe, and the stages that hold its results; of an ensemble only tasks."""

    variant: str
    seed: int
    recipe: PretrainRecipe | None
    pretrain: str
    probe: str | None = None
    tasks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MatchedWallClock:
    """How a variant's steps follow from another's: by seconds a step of both, and what FLOPs alone would say.

    `seconds` a step, own and the other's, are None before they are measured; then FLOPs stand in for them.
    """

    of: str
    other_steps: int
    steps_by_flops: int
    seconds: tuple[float, float] | None

    @property
    def steps(self) -> int:
        """The steps that take as long."""
        if self.seconds is None:
            return self.steps_by_flops
        own, other = self.seconds
        return max(2, round(self.other_steps * other / own))

    def to_json(self) -> dict[str, Any]:
        """For `--json` and `results.json`."""
        return {**dataclasses.asdict(self), "steps": self.steps}


class CountedModel(Record):
    """A model as `albert params` counts it."""

    total: Number = 0
    paper_count: Number = 0
    config: Numbers = Field(default={})


class StageRecord(Record):
    """The result file of a stage; what its command printed is read as numbers, as a task's result, and by some keys."""

    seconds: Number | None = None
    diverged: bool = False
    numbers: Numbers = Field(default={}, alias="result")
    task: Result = Field(default=Result(), alias="result")
    layer_steps: dict[str, list[Number]] = Field(default={}, validation_alias=AliasPath("result", "layer_steps"))
    without_parts: dict[str, list[Number]] = Field(default={}, validation_alias=AliasPath("result", "without_parts"))
    recipe_step: Numbers = Field(default={}, validation_alias=AliasPath("result", "recipe_step"))
    models: list[CountedModel] = Field(default=[], validation_alias=AliasPath("result", "models"))


@dataclass
class ExperimentPlan:
    """Everything to do, in an order in which every stage comes after what it needs."""

    experiment: Experiment
    request: ExperimentRequest
    stages: dict[str, Stage] = field(default_factory=dict)
    runs: list[VariantRun] = field(default_factory=list)
    prefixes: list[VariantRun] = field(default_factory=list)  # what others start from, measured by nothing
    left_out: dict[str, str] = field(default_factory=dict)
    equal_time: dict[str, MatchedWallClock] = field(default_factory=dict)  # by variant

    @property
    def left(self) -> list[Stage]:
        """The stages that are not done."""
        return [stage for stage in self.stages.values() if not self.result(stage.id).is_file()]

    @property
    def unmeasured(self) -> list[ExperimentPlan]:
        """What must be run before the steps are known: a plan for each speed that is not measured."""
        return [dataclasses.replace(self, stages=self._up_to(stage)) for stage in self.left if stage.kind == "speed"]

    def _up_to(self, stage: Stage) -> dict[str, Stage]:
        """A stage after all that it needs."""
        found: dict[str, Stage] = {}
        for need in stage.needs:
            found |= self._up_to(self.stages[need])
        return found | {stage.id: stage}

    @property
    def scale(self) -> ExperimentScale:
        """The experiment's settings at the scale that was asked for."""
        return self.experiment.scales[self.request.scale]

    @property
    def claims(self) -> list[PaperClaim]:
        """What is asked at this scale, and of tasks only where it has any."""
        asked = [c for c in self.experiment.claims if not c.scales or self.request.scale in c.scales]
        return [c for c in asked if self.scale.tasks or not c.is_of_tasks]

    @property
    def chosen(self) -> list[str]:
        """The variants that the scale runs, prefixes included, in the recipe's order."""
        all_, named = self.experiment.variants, self.scale.variants
        return [name for name, v in all_.items() if not named or name in named or v.is_prefix]

    @property
    def variants(self) -> list[str]:
        """The rows of the experiment's table at this scale."""
        return [name for name in self.chosen if not self.experiment.variants[name].is_prefix]

    def title(self, row: str) -> str:
        """What a row of the paper's tables is called, be it a variant's or not."""
        variant = self.experiment.variants.get(row)
        return variant.title if variant else row

    @property
    def folder(self) -> Path:
        """Where the stages lie, those of other experiments too."""
        return self.request.out / "stages"

    @property
    def report(self) -> Path:
        """The directory of the report."""
        return self.request.out / f"{self.experiment.name}-{self.request.scale}"

    def directory(self, stage: str) -> Path:
        """Where a stage writes."""
        return self.folder / stage

    def result(self, stage: str) -> Path:
        """The file that says that a stage is done, with what it printed."""
        return self.folder / f"{stage}.json"

    def record(self, stage: str | None) -> StageRecord:
        """What a stage's result file says; nothing where it is not done."""
        return StageRecord.read(self.result(stage)) if stage else StageRecord()

    @property
    def text(self) -> tuple[str, ...]:
        """The sources of the usual text: those that were asked for, or the scale's."""
        return self.request.text or self.scale.text

    @cached_property
    def vocab_size(self) -> int:
        """Of the finished data that were asked for, or of the vocabulary that will be made."""
        data = self.request.data
        return read_data_facts(data)["vocab_size"] if data else self.scale.vocabulary

    def stage(
        self,
        kind: StageKind,
        title: str,
        facts: Mapping[str, Any],
        needs: Sequence[str],
        argv: Sequence[str],
        cost: Cost | None = None,
    ) -> str:
        """Take a stage into the plan, once; its name. `OUT` in its command stands for its own directory.

        The command ends with `--json`, before which what uses a model names the device.
        """
        stage = Stage(kind, title, facts, tuple(needs), (), cost)
        where = str(self.directory(stage.id))
        device = () if kind in ("count", "vocabulary", "data", "table") else ("--device", self.request.device)
        words = tuple(where if word == OUT else word for word in (*argv, *device, "--json"))
        self.stages.setdefault(stage.id, dataclasses.replace(stage, argv=words))
        return stage.id
