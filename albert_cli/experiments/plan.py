"""The records of an experiment's plan: the request, the stages and their costs, and the paths of their results.

A stage is one command that writes one directory, which later stages may read. Its id is a hash of everything that
determines its result. Experiments in one output directory therefore share equal stages: the vocabulary, the data, and
every run that two of them need. The module `stages` makes the plans.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from albert_cli import store
from albert_cli.experiments.experiment import Experiment, ExperimentScale, PaperClaim, ScaleName
from albert_cli.formatting import format_command
from albert_cli.training.pretrain_recipe import PretrainRecipe

StageKind = Literal[
    "count",  # `albert params`: count the parameters of a shape
    "vocabulary",  # `albert vocab`
    "data",  # `albert data`: token shards to train on or to score
    "table",  # generate a labeled table of key words to recall
    "pairs",  # generate minimal pairs of word order
    "speed",  # `albert bench pretrain`: measure a variant's seconds per step
    "pretrain",  # `albert pretrain`: one variant with one seed
    "probe",  # `albert probe`: the intrinsic scores of a pretrained model, and the scores of minimal pairs
    "task",  # the score of a model on a task: `albert eval` or `albert ensemble`
]
# The module of this package that a stage runs, by the stage's kind; stages of other kinds run a command of `albert`.
MODULES: Final[dict[StageKind, str]] = {"table": "recall_table", "pairs": "word_order_pairs"}
MIN_STEPS: Final = 2  # the fewest steps of a run, at any scale
OUT = "{OUT}"  # the placeholder, in the arguments of `create_stage`, for the stage's directory


@dataclass(frozen=True)
class ExperimentRequest:
    """The options of `albert reproduce`: the scale, the output directory, and values that replace the recipe's."""

    scale: ScaleName
    out: Path
    text: tuple[str, ...] = ()
    extra_text: tuple[str, ...] = ()
    """Additional text for the variants that train on more text than the others."""
    data: Path | None = None
    """A directory of token shards to train on, instead of text."""
    tasks: Path | None = None
    """The folder of the tasks' files."""
    minimal_pairs: Path | None = None
    """A file of minimal pairs that every probe scores, instead of generated pairs."""
    seeds: int | None = None
    changes: tuple[str, ...] = ()
    """Changes to every pretraining recipe: `section.key=value`."""
    device: str = "auto"
    nproc: int = 1
    dry_run: bool = False
    tflops: Mapping[str, float] = field(default_factory=dict)
    """Measured TFLOP/s of one device by variant, for the hours of a plan; the key "" is for all variants not listed."""
    text_hashes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names and hashes of the local files of each text, by source; `make_plan` computes them."""

    def flops_per_second(self, variant: str) -> float | None:
        """Return the measured FLOP/s of one device for a variant; None without `--tflops`."""
        tflops = self.tflops.get(variant, self.tflops.get(""))
        return tflops * 1e12 if tflops else None

    @property
    def stage_folder(self) -> Path:
        """The folder of all stages, including the stages of other experiments."""
        return self.out / "stages"

    def directory(self, stage: Stage) -> Path:
        """Return the directory that a stage writes."""
        return self.stage_folder / stage.id

    def result_path(self, stage: Stage) -> Path:
        """Return the result file of a stage, which is written last."""
        return self.stage_folder / f"{stage.id}.json"


@dataclass(frozen=True)
class Cost:
    """The model's parameters, and upper bounds of the resources that a training stage takes."""

    parameters: int
    steps: int
    tokens: int
    flops: float
    disk_bytes: int


@dataclass(frozen=True)
class Stage:
    """A command, the facts that determine its result, and the stages that must be finished before it runs."""

    kind: StageKind
    title: str
    facts: Mapping[str, Any]  # as JSON: settings, and the identities of inputs
    needs: tuple[Stage, ...] = ()
    argv: tuple[str, ...] = ()  # without the program
    cost: Cost | None = None  # None if it is unknown

    @cached_property
    def id(self) -> str:
        """`KIND-` and the first 12 hex digits of the SHA-256 of the facts and of the ids of the needed stages."""
        facts = json.dumps([self.kind, self.facts, [stage.id for stage in self.needs]], sort_keys=True, default=str)
        return f"{self.kind}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"

    @property
    def command(self) -> str:
        """The command as typed in a shell, without the secrets of URLs."""
        module = MODULES.get(self.kind)
        program = ["python", "-m", f"albert_cli.experiments.{module}"] if module else ["albert"]
        return format_command([*program, *self.argv])


@dataclass(frozen=True)
class VariantRun:
    """A variant with one seed: its recipe, and the stages that train and measure it.

    An ensemble has only `tasks`. In an experiment that trains nothing, `recipe` is None, and `pretrain` is the stage
    that counts the variant's parameters.
    """

    variant: str
    seed: int
    recipe: PretrainRecipe | None
    pretrain: Stage | None
    probe: Stage | None = None
    tasks: Mapping[str, Stage] = field(default_factory=dict)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages in `pretrain`, `probe` and `tasks`; `ExperimentPlan.stages` adds the stages that they need."""
        return tuple(stage for stage in (self.pretrain, self.probe, *self.tasks.values()) if stage is not None)


@dataclass(frozen=True)
class MatchedTime:
    """The number of steps of a variant that trains for the same time as another variant.

    `seconds` are the seconds per step of the variant and of `other`. If they are unknown, the variant gets the FLOPs of
    the other run instead.
    """

    other: str
    other_steps: int
    steps_by_flops: int  # the number of steps with the FLOPs of the other run
    seconds: tuple[float, float] | None
    is_measured: bool = False  # False if `seconds` are unknown, or computed from `--tflops`

    @property
    def steps(self) -> int:
        """The number of steps to train."""
        if self.seconds is None:
            return self.steps_by_flops
        seconds, other_seconds = self.seconds
        return max(MIN_STEPS, round(self.other_steps * other_seconds / seconds))

    def to_json(self) -> dict[str, object]:
        """Return the fields for `--json` and `results.json`."""
        return {**dataclasses.asdict(self), "steps": self.steps}


@dataclass(frozen=True)
class ExperimentPlan:
    """Everything to run for an experiment at a scale."""

    experiment: Experiment
    request: ExperimentRequest
    runs: Sequence[VariantRun]
    unmeasured: Sequence[VariantRun] = ()  # runs that other runs start or distil from and that are not measured
    speeds: Sequence[Stage] = ()  # stages that measure seconds per step, for `matched_times`
    skipped: Mapping[str, str] = field(default_factory=dict)  # the reason for each task or text that is left out
    matched_times: Mapping[str, MatchedTime] = field(default_factory=dict)  # by variant with `match_time_of`

    @cached_property
    def stages(self) -> Mapping[str, Stage]:
        """All stages by id, each after the stages it needs."""
        roots = [*self.speeds, *(stage for run in (*self.unmeasured, *self.runs) for stage in run.stages)]
        return _sort_with_needs(roots)

    @property
    def scale(self) -> ExperimentScale:
        """The experiment's settings at the requested scale."""
        return self.experiment.scales[self.request.scale]

    @property
    def claims(self) -> list[PaperClaim]:
        """The claims to test at this scale, without claims about tasks if the scale has no tasks."""
        claims = [claim for claim in self.experiment.claims if not claim.scales or self.request.scale in claim.scales]
        return [claim for claim in claims if self.scale.tasks or not claim.compares_tasks]

    @property
    def variants(self) -> list[str]:
        """The names of the measured variants, which are the rows of our table."""
        return list(dict.fromkeys(run.variant for run in self.runs))

    def title(self, row: str) -> str:
        """Return the title of a row in the paper's tables: the variant's title, or the name of another model."""
        variant = self.experiment.variants.get(row)
        return variant.title if variant else row

    @property
    def report_folder(self) -> Path:
        """The folder of the report."""
        return self.request.out / f"{self.experiment.name}-{self.request.scale}"

    def directory(self, stage: Stage) -> Path:
        """Return the directory that a stage writes."""
        return self.request.directory(stage)

    def result_path(self, stage: Stage) -> Path:
        """Return the result file of a stage, which is written last."""
        return self.request.result_path(stage)

    def is_finished(self, stage: Stage) -> bool:
        """Return True if the stage has its result file and, unless it diverged, the directory that it writes.

        Other stages read the directory, and so do the comparisons of the report.
        """
        path = self.result_path(stage)
        if not path.is_file():
            return False
        directory = self.directory(stage)
        if str(directory) not in stage.argv or directory.is_dir():
            return True
        return bool(store.read_json(path).get("diverged"))

    def count_finished(self) -> int:
        """Return the number of finished stages."""
        return sum(map(self.is_finished, self.stages.values()))

    def unfinished(self, stages: Sequence[Stage]) -> list[Stage]:
        """Return the unfinished stages among `stages` and the stages they need, each after the stages it needs."""
        return [stage for stage in _sort_with_needs(stages).values() if not self.is_finished(stage)]


def _sort_with_needs(stages: Iterable[Stage]) -> dict[str, Stage]:
    """Return the stages and all stages they need by id, each after the stages it needs."""
    by_id: dict[str, Stage] = {}
    for stage in stages:
        by_id |= _sort_with_needs(stage.needs)
        by_id[stage.id] = stage
    return by_id


def add_dependencies(experiment: Experiment, variants: Collection[str]) -> set[str]:
    """Return the variants and all variants that must be trained before them."""
    names = set(variants)
    for name in variants:
        names |= add_dependencies(experiment, experiment.variants[name].dependencies)
    return names


def create_stage(
    request: ExperimentRequest,
    kind: StageKind,
    title: str,
    facts: Mapping[str, object],
    needs: Sequence[Stage],
    argv: Sequence[str],
    cost: Cost | None = None,
) -> Stage:
    """Return a stage whose command is `argv`, with the stage's directory in place of `OUT`.

    The command also gets `--json`. `pretrain` and `speed` get the requested number of processes, and commands that
    compute on a device get `--device`.
    """
    stage = Stage(kind, title, facts, tuple(needs), cost=cost)
    # The directory's name is the stage's id. It does not depend on `argv`, so it is already correct here.
    directory = str(request.directory(stage))
    words = [directory if word == OUT else word for word in argv]
    if kind in ("pretrain", "speed") and request.nproc > 1:
        words += ["--nproc", str(request.nproc)]
    if kind not in ("count", "vocabulary", "data", *MODULES):
        words += ["--device", request.device]
    return dataclasses.replace(stage, argv=(*words, "--json"))
