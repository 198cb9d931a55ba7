"""The plan of an experiment: stages that each make one directory, and where their results are.

A stage is one `albert` command. Its name is a hash of everything that determines its result, so experiments in one
directory share the vocabulary, the data, and every run that two of them need.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from albert_cli.experiments.recipe import Experiment, ExperimentScale, PaperClaim, ScaleName
from albert_cli.training.pretrain_recipe import PretrainRecipe

StageKind = Literal["count", "vocabulary", "data", "table", "pairs", "speed", "pretrain", "probe", "task"]
GENERATORS: Final[dict[StageKind, str]] = {"table": "recall_table", "pairs": "word_order_pairs"}  # modules
OUT = "{OUT}"  # in a command, the stage's own directory


@dataclass(frozen=True)
class ExperimentRequest:
    """The user's request: the scale, the output directory, and what replaces the recipe's values."""

    scale: ScaleName
    out: Path
    text: tuple[str, ...] = ()
    extra_text: tuple[str, ...] = ()
    data: Path | None = None
    """A finished data directory that replaces the text."""
    tasks: Path | None = None
    """The folder of the tasks' files."""
    minimal_pairs: Path | None = None
    """A file of minimal pairs that every probe scores."""
    seeds: int | None = None
    changes: tuple[str, ...] = ()
    """Changes to every pretraining recipe: `section.key=value`."""
    device: str = "auto"
    nproc: int = 1
    dry_run: bool = False
    tflops: Mapping[str, float] = field(default_factory=dict)
    """Measured speeds of a device by variant, "" for all variants, for the hours of a plan."""

    def flops_per_second(self, variant: str) -> float | None:
        """Return the FLOP/s of a device that `--tflops` has for a variant."""
        tflops = self.tflops.get(variant, self.tflops.get(""))
        return tflops * 1e12 if tflops else None

    @property
    def stage_folder(self) -> Path:
        """The folder of all stages, including the stages of other experiments."""
        return self.out / "stages"


@dataclass(frozen=True)
class Cost:
    """Upper bounds of a stage's resources."""

    parameters: int
    steps: int
    tokens: int
    flops: float
    disk_bytes: int


@dataclass(frozen=True)
class Stage:
    """A command, the facts that determine its result, and the stages whose directories it reads.

    It is an `albert` command, except for what an experiment generates itself.
    """

    kind: StageKind
    title: str
    facts: Mapping[str, Any]  # JSON
    needs: tuple[Stage, ...] = ()
    argv: tuple[str, ...] = ()
    cost: Cost | None = None

    @cached_property
    def id(self) -> str:
        """`KIND-` and 12 hex digits of the facts' hash."""
        facts = json.dumps([self.kind, self.facts, [stage.id for stage in self.needs]], sort_keys=True, default=str)
        return f"{self.kind}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"

    @property
    def command(self) -> str:
        """The command as typed in a shell."""
        module = GENERATORS.get(self.kind)
        program = ["python", "-m", f"albert_cli.experiments.{module}"] if module else ["albert"]
        return shlex.join([*program, *self.argv])


@dataclass(frozen=True)
class VariantRun:
    """A variant with one seed: its recipe and the stages with its results. An ensemble has tasks alone."""

    variant: str
    seed: int
    recipe: PretrainRecipe | None
    pretrain: Stage | None
    probe: Stage | None = None
    tasks: Mapping[str, Stage] = field(default_factory=dict)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All stages of the run itself."""
        return tuple(stage for stage in (self.pretrain, self.probe, *self.tasks.values()) if stage is not None)


@dataclass(frozen=True)
class MatchedWallClock:
    """A number of steps that takes as long as another variant's run.

    `seconds` per step, of the variant and of the other: measured, or from the FLOP/s of `--tflops`. Without either,
    FLOPs decide.
    """

    other: str
    other_steps: int
    steps_by_flops: int
    seconds: tuple[float, float] | None
    is_measured: bool = False

    @property
    def steps(self) -> int:
        """The number of steps to train."""
        if self.seconds is None:
            return self.steps_by_flops
        own_seconds, other_seconds = self.seconds
        return max(2, round(self.other_steps * other_seconds / own_seconds))

    def to_json(self) -> dict[str, object]:
        """Return the fields for `--json` and `results.json`."""
        return {**dataclasses.asdict(self), "steps": self.steps}


@dataclass(frozen=True)
class ExperimentPlan:
    """Everything to run for an experiment at a scale."""

    experiment: Experiment
    request: ExperimentRequest
    runs: Sequence[VariantRun]
    prefixes: Sequence[VariantRun] = ()  # other runs start from them; they are not measured
    speeds: Sequence[Stage] = ()  # measurements that determine the steps of other stages
    skipped: Mapping[str, str] = field(default_factory=dict)  # a task or a text -> the reason
    matched_times: Mapping[str, MatchedWallClock] = field(default_factory=dict)  # by variant

    @cached_property
    def stages(self) -> Mapping[str, Stage]:
        """All stages by id, each after the stages it needs."""
        roots = [*self.speeds, *(stage for run in (*self.prefixes, *self.runs) for stage in run.stages)]
        return {stage.id: stage for root in roots for stage in _in_order(root)}

    @property
    def scale(self) -> ExperimentScale:
        """The experiment's settings at the requested scale."""
        return self.experiment.scales[self.request.scale]

    @property
    def claims(self) -> list[PaperClaim]:
        """All claims for this scale; claims about tasks only if it has tasks."""
        claims = [claim for claim in self.experiment.claims if not claim.scales or self.request.scale in claim.scales]
        return [claim for claim in claims if self.scale.tasks or not claim.compares_tasks]

    @property
    def variants(self) -> list[str]:
        """The rows of the experiment's table at this scale."""
        return list(dict.fromkeys(run.variant for run in self.runs))

    def title(self, row: str) -> str:
        """Return the title of a variant, or a row's own name in the paper's tables."""
        variant = self.experiment.variants.get(row)
        return variant.title if variant else row

    @property
    def report_folder(self) -> Path:
        """The folder of the report."""
        return self.request.out / f"{self.experiment.name}-{self.request.scale}"

    def directory(self, stage: Stage) -> Path:
        """Return the directory that a stage writes."""
        return self.request.stage_folder / stage.id

    def result_path(self, stage: Stage) -> Path:
        """Return the result file of a stage, which exists once the stage is finished."""
        return self.request.stage_folder / f"{stage.id}.json"

    def is_finished(self, stage: Stage) -> bool:
        """Return True if the stage has its result file."""
        return self.result_path(stage).is_file()

    def unfinished(self, stages: Sequence[Stage]) -> list[Stage]:
        """Return the unfinished stages among `stages` and those they need, each after the stages it needs."""
        in_order = {stage.id: stage for root in stages for stage in _in_order(root)}
        return [stage for stage in in_order.values() if not self.is_finished(stage)]


def _in_order(stage: Stage) -> Iterator[Stage]:
    for need in stage.needs:
        yield from _in_order(need)
    yield stage


def create_stage(
    request: ExperimentRequest,
    kind: StageKind,
    title: str,
    facts: Mapping[str, object],
    needs: Sequence[Stage],
    argv: Sequence[str],
    cost: Cost | None = None,
) -> Stage:
    """Return a stage whose command writes its own directory, uses the requested device and prints JSON."""
    stage = Stage(kind, title, facts, tuple(needs), cost=cost)
    directory = str(request.stage_folder / stage.id)
    device = () if kind in ("count", "vocabulary", "data", *GENERATORS) else ("--device", request.device)
    words = (directory if word == OUT else word for word in argv)
    return dataclasses.replace(stage, argv=(*words, *device, "--json"))
