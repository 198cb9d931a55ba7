"""An experiment resolved at a scale: stages that each make one directory from others, and what they cost.

A stage is one `albert` command. Its name is a hash of everything that decides its result, so that experiments in one
directory share what they have in common: the vocabulary, the data, and every run that two of them need.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from albert_cli import config, store
from albert_cli.counting import costs
from albert_cli.data.pairs import PairSettings
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import ConfigError, InputError
from albert_cli.evaluation.verify import data_of
from albert_cli.experiments.recipe import Claim, Experiment, Scale, ScaleName, Settings
from albert_cli.results import Number, Numbers, Record, Result
from albert_cli.tasks.spec import find_task
from albert_cli.training.pretrain_recipe import PretrainRecipe

Kind = Literal["count", "vocabulary", "data", "speed", "pretrain", "probe", "task"]
_ROUNDS = 15  # timed steps of a variant that is to train as long as another


@dataclass(frozen=True)
class Request:
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
    disk: int


@dataclass(frozen=True)
class Stage:
    """One command, the facts that decide what it makes, and the stages whose directories it reads."""

    kind: Kind
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
        return shlex.join(["albert", *self.argv])


@dataclass(frozen=True)
class Run:
    """A variant with one seed: its resolved recipe, and the stages that hold its results; of an ensemble only tasks."""

    variant: str
    seed: int
    recipe: PretrainRecipe | None
    pretrain: str
    probe: str | None = None
    tasks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EqualTime:
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


class Counted(Record):
    """A model as `albert params` counts it."""

    total: Number = 0
    paper_count: Number = 0
    config: Numbers = Field(default_factory=dict)


class Printed(Record):
    """What a stage's command printed beside numbers."""

    layer_steps: dict[str, list[Number]] = Field(default_factory=dict)
    recipe_step: Numbers = Field(default_factory=dict)
    models: list[Counted] = Field(default_factory=list)


class StageRecord(Record):
    """The result file of a stage; what its command printed is read as numbers, as a task's result, and as `Printed`."""

    seconds: Number | None = None
    diverged: bool = False
    numbers: Numbers = Field(default_factory=dict)
    task: Result = Result()
    printed: Printed = Printed()

    @model_validator(mode="before")
    @classmethod
    def _views(cls, value: Mapping[str, object]) -> Mapping[str, object]:
        return {**value, **dict.fromkeys(("numbers", "task", "printed"), value.get("result"))}

    @property
    def whole_seconds(self) -> float | None:
        """A stage's own seconds where it has them, since those of earlier attempts are among them."""
        known = [s for s in (self.numbers.get("seconds"), self.seconds) if s is not None]
        return max(known, default=None)


@dataclass
class Plan:
    """Everything to do, in an order in which every stage comes after what it needs."""

    experiment: Experiment
    request: Request
    stages: dict[str, Stage] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    prefixes: list[Run] = field(default_factory=list)  # what others start from, measured by nothing
    left_out: dict[str, str] = field(default_factory=dict)
    equal_time: dict[str, EqualTime] = field(default_factory=dict)  # by variant

    @property
    def hub_text(self) -> list[str]:
        """The sources on the Hub that stages which are not done will read."""
        stages = [
            s for s in self.stages.values() if s.kind in ("vocabulary", "data") and not self.result(s.id).is_file()
        ]
        return list(dict.fromkeys(name for s in stages for name in s.facts["text"] if name.startswith("hf:")))

    @property
    def unmeasured(self) -> list[Plan]:
        """What must be run before the steps are known: a plan for each speed that is not measured."""
        stages = [stage for stage in self.stages.values() if stage.kind == "speed"]
        left = [stage for stage in stages if not self.result(stage.id).is_file()]
        return [
            dataclasses.replace(self, stages={name: self.stages[name] for name in (*self._before(stage), stage.id)})
            for stage in left
        ]

    def _before(self, stage: Stage) -> list[str]:
        """All that a stage needs, in order."""
        needed = [name for need in stage.needs for name in (*self._before(self.stages[need]), need)]
        return list(dict.fromkeys(needed))

    @property
    def scale(self) -> Scale:
        """The experiment's settings at the scale that was asked for."""
        return self.experiment.scales[self.request.scale]

    @property
    def claims(self) -> list[Claim]:
        """What is asked at this scale."""
        return [c for c in self.experiment.claims if not c.scales or self.request.scale in c.scales]

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

    def directory(self, stage: str) -> Path:
        """Where a stage writes."""
        return self.request.out / "stages" / stage

    def result(self, stage: str) -> Path:
        """The file that says that a stage is done, with what it printed."""
        return self.request.out / "stages" / f"{stage}.json"

    def record(self, stage: str | None) -> StageRecord:
        """What a stage's result file says; nothing where it is not done."""
        return StageRecord.read(self.result(stage)) if stage else StageRecord()


def make(experiment: Experiment, request: Request) -> Plan:
    """Resolve an experiment; raises `ConfigError` where a recipe or an option cannot be."""
    plan = Plan(experiment, request)
    builder = _Builder(plan)
    if experiment.is_counted:
        for name, variant in experiment.variants.items():
            argv = ("params", str(variant.shape), "--json")
            facts = {"shape": str(variant.shape)}
            plan.runs.append(
                Run(name, 0, None, builder.stage("count", f"{variant.title}: parameters", facts, (), argv))
            )
        return plan
    seeds = request.seeds if request.seeds is not None else plan.scale.seeds
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: at least one is needed")
    builder.tasks = _available_tasks(plan)
    for name in plan.chosen:
        for seed in range(seeds):
            if experiment.variants[name].members:
                plan.runs.append(builder.ensemble(name, seed))
                continue
            run = builder.run(name, seed)
            if experiment.variants[name].is_prefix:
                plan.prefixes.append(run)
            else:
                plan.runs.append(builder.measured(run))
    return plan


def _available_tasks(plan: Plan) -> list[str]:
    """The scale's tasks whose files are there, in a dry run without a folder all; the others are noted, with why."""
    folder, found = plan.request.tasks, []
    if folder is not None and not folder.is_dir():
        raise InputError(f"--tasks {folder}: no such folder", "name the one with the tasks' folders, such as RTE")
    for name in plan.scale.tasks:
        task = find_task(name)
        if plan.request.dry_run and folder is None:
            found.append(name)  # what it would cost; the folder is named when it is run
            continue
        try:
            if (place := task_data(plan, name)) is None:
                raise InputError("--text names no text" if task.is_made_of_text else "--tasks names no folder")
            for split in task.splits[: 1 + len(task.dev_splits)]:
                task.read(split, place)
            found.append(name)
        except (ConfigError, InputError) as error:
            plan.left_out[name] = error.message
    return found


def task_data(plan: Plan, name: str) -> str | None:
    """Where a task's data are: the folder of tasks, or the first source of text for one that is made of any text."""
    if not find_task(name).is_made_of_text:
        return None if plan.request.tasks is None else data_of(name, str(plan.request.tasks))
    text = plan.request.text or (() if plan.request.data else plan.scale.text)
    return text[0] if text else None


# ---------------------------------------------------------------- stages

_OUT = "{OUT}"  # in the words of a command: the stage's own directory, which is named after its facts


@dataclass
class _Builder:
    plan: Plan
    tasks: Sequence[str] = ()
    _made: dict[tuple[str, int], Run | None] = field(default_factory=dict)
    _measured: dict[tuple[str, int], Run] = field(default_factory=dict)

    def stage(
        self,
        kind: Kind,
        title: str,
        facts: Mapping[str, Any],
        needs: Sequence[str],
        argv: Sequence[str],
        cost: Cost | None = None,
    ) -> str:
        """Take a stage into the plan, once; its name."""
        stage = Stage(kind, title, facts, tuple(needs), (), cost)
        where = str(self.plan.directory(stage.id))
        words = tuple(where if word == _OUT else word for word in argv)
        self.plan.stages.setdefault(stage.id, dataclasses.replace(stage, argv=words))
        return stage.id

    def run(self, name: str, seed: int) -> Run:
        """The pretraining of a variant with a seed, after whatever it starts from."""
        if (name, seed) not in self._made:
            self._made[name, seed] = None
            self._made[name, seed] = self._run(name, seed)
        if (made := self._made[name, seed]) is None:
            raise ConfigError(f"{self.plan.experiment.name}: the variant {name} starts from itself")
        return made

    def _run(self, name: str, seed: int) -> Run:
        plan, variant = self.plan, self.plan.experiment.variants[name]
        base, values = self._settings(name, seed)
        own_initial = values.pop("initial", {})  # how, of a parent that is known below
        data, needs, directory = self._data(variant.text)
        facts: dict[str, Any] = {"data": data}
        done, others = 0, dict[str, Any]()
        if variant.after:
            before = self.run(variant.after, seed)
            parent, how = before.pretrain, "continues" if variant.continues else "checkpoint"
            how_else = {**own_initial, **({"stack": True} if variant.stacked else {})}
            facts["initial"] = {how: parent, **how_else} if variant.continues or how_else else parent
            needs = (*needs, parent)
            others["initial"] = {how: str(plan.directory(parent)), **how_else}
            if variant.continues and before.recipe is not None:
                done = before.recipe.schedule.total_steps
        if variant.teacher:
            facts["teacher"] = teacher = self.run(variant.teacher, seed).pretrain
            needs = (*needs, teacher)
            others["distill"] = {"teacher": str(plan.directory(teacher))}
        recipe = self._validated(name, values)
        facts["recipe"] = config.as_dict(recipe)  # without what it starts from, which says where the files lie
        changes = _options(config.read_recipe(base), config.merge(values, others))
        argv = ["pretrain", base, "--data", directory, "--out", _OUT, *changes, *self._ranks(), *self._ending()]
        recipe = self._with_vocabulary(recipe)
        title, cost = f"{variant.title}, seed {seed}: pretraining", pretraining_cost(recipe, done)
        if variant.teacher and (taught := self.run(variant.teacher, seed).recipe):
            forward = costs.forward_flops(taught.model, recipe.data.max_seq_length)
            cost = dataclasses.replace(cost, flops=cost.flops + cost.tokens * forward)
        return Run(name, seed, recipe, self.stage("pretrain", title, facts, needs, argv, cost))

    def measured(self, run: Run) -> Run:
        """The run with its probe, on the usual text and the scale's own masks, and its tasks."""
        plan, scale = self.plan, self.plan.scale
        of, checkpoint = f"{plan.experiment.variants[run.variant].title}, seed {run.seed}", plan.directory(run.pretrain)
        data, needs, directory = self._probed()
        own = config.merge(config.read_recipe(scale.base), scale.changes).get("data", {})
        pairs = config.as_dict(config.validate(PairSettings, own, plan.experiment.name))  # whatever a run's are
        if run.recipe is not None:  # but no longer than it can read
            pairs["max_seq_length"] = min(pairs["max_seq_length"], run.recipe.model.max_position_embeddings)
        facts: dict[str, Any] = {"pairs": pairs, "sequences": scale.probe_sequences, "data": data}
        argv = ["probe", str(checkpoint), "--data", directory, "--sequences", str(scale.probe_sequences)]
        argv += [*_options({}, {"data": pairs}), *self._ending()]
        probe = self.stage("probe", f"{of}: intrinsic scores", facts, (run.pretrain, *needs), argv)
        tasks, runs = {}, scale.task_runs
        for name in self.tasks if plan.experiment.variants[run.variant].has_tasks else ():
            folder = task_data(plan, name) or "TASKS"
            facts = {"task": name, "changes": scale.task_changes, "runs": runs, "data": folder}
            argv = ["eval", name, "--checkpoint", str(checkpoint), "--data", folder, "--out", _OUT, "--runs", str(runs)]
            argv += [*_options({}, scale.task_changes), *self._ending()]
            cost = fine_tuning_cost(name, run, scale)
            tasks[name] = self.stage("task", f"{of}: {name}", facts, (run.pretrain,), argv, cost)
        made = self._measured[run.variant, run.seed] = dataclasses.replace(run, probe=probe, tasks=tasks)
        return made

    def ensemble(self, name: str, seed: int) -> Run:
        """The fine-tuned models of a variant's members together, by task."""
        variant, tasks = self.plan.experiment.variants[name], {}
        members = [self._measured[member, seed] for member in variant.members if (member, seed) in self._measured]
        for task in self.tasks:
            needs = [member.tasks[task] for member in members]
            argv = ["ensemble", task, *(str(self.plan.directory(need)) for need in needs)]
            argv += ["--data", task_data(self.plan, task) or "TASKS", "--out", _OUT, *self._ending()]
            title = f"{variant.title}, seed {seed}: {task}"
            tasks[task] = self.stage("task", title, {"together": task}, needs, argv)
        return Run(name, seed, None, "", None, tasks)

    def _probed(self) -> tuple[str, tuple[str, ...], str]:
        """The data of intrinsic scores: of the scale's own text for them where that is there, else the usual data."""
        plan, tasks = self.plan, self.plan.request.tasks
        usual = self._data("usual")
        sources = [source.replace("TASKS", str(tasks or "TASKS")) for source in plan.scale.probe_text]
        there = [s for s in sources if tasks is None or Path(s.partition(":")[2]).exists()]
        there = there if tasks is not None or plan.request.dry_run else []
        plan.left_out |= {s: "is not there, and no intrinsic score is of it" for s in sources if s not in there}
        if not there:
            return usual[0], (), usual[2]
        where = str(TokenCorpus.open(plan.request.data).vocabulary_dir) if plan.request.data else self._vocabulary()[1]
        argv = ["data", *there, "--vocab", where, "--holdout", "0", "--out", _OUT, "--json"]
        needs = () if plan.request.data else (self._vocabulary()[0],)
        made = self.stage("data", "token shards for intrinsic scores", {"text": there, "vocab": usual[0]}, needs, argv)
        return made, (made,), str(plan.directory(made))

    def _data(self, text: str) -> tuple[str, tuple[str, ...], str]:
        """The data of a variant's text: a stage or a fingerprint, the stages to wait for, and the directory."""
        plan, scale, request = self.plan, self.plan.scale, self.plan.request
        if request.data is not None:
            if text == "extra":
                hint = "give --text and --extra-text instead"
                raise ConfigError("--data: this experiment compares two corpora", hint)
            return store.fingerprint(request.data), (), str(request.data)
        usual = request.text or scale.text
        extra = request.extra_text or (() if request.text else scale.extra_text)
        if text == "extra" and not extra:
            raise ConfigError("there is no additional text", "name some with --extra-text")
        if "-" in (*usual, *extra):
            raise ConfigError("--text -: standard input can be read only once", "write it to a file, and name that")
        vocabulary, where = self._vocabulary()
        sources, title = usual, "token shards"
        options = ["--vocab", where, "--holdout", str(scale.holdout), "--out", _OUT]
        if text == "extra":
            sources, title = (*usual, *extra), "token shards with the additional text"
            options.append("--dedup")  # the two may overlap
        facts: dict[str, Any] = {"text": sources, "holdout": scale.holdout}
        data = self.stage("data", title, facts, (vocabulary,), ["data", *sources, *options, "--json"])
        return data, (data,), str(plan.directory(data))

    def _vocabulary(self) -> tuple[str, str]:
        """The stage of the usual text's vocabulary, and its directory."""
        scale, text = self.plan.scale, self.plan.request.text or self.plan.scale.text
        facts: dict[str, Any] = {"text": text, "size": scale.vocabulary, "sample": scale.sample}
        options = ["--size", str(scale.vocabulary), "--sample-size", str(scale.sample), "--out", _OUT]
        title = f"vocabulary of {scale.vocabulary:,} tokens"
        made = self.stage("vocabulary", title, facts, (), ["vocab", *text, *options, "--json"])
        return made, str(self.plan.directory(made))

    def _ranks(self) -> list[str]:
        return ["--nproc", str(self.plan.request.nproc)] if self.plan.request.nproc > 1 else []

    def _ending(self) -> tuple[str, ...]:
        return ("--device", self.plan.request.device, "--json")

    # ------------------------------------------------------------ recipes

    def _settings(self, name: str, seed: int) -> tuple[str, Settings]:
        """The base recipe of a variant, and its values with every change on them."""
        scale, other = self.plan.scale, self.plan.experiment.variants[name].time_of
        base, values = self._before_steps(name)
        schedule = values.get("schedule", {})
        steps = schedule.get("total_steps", PretrainRecipe().schedule.total_steps) * scale.step_share
        if other is not None:
            steps = self._as_long(name, other, seed).steps
        own = {"total_steps": max(2, round(steps))}
        if decay := schedule.get("decay_steps"):
            own["decay_steps"] = max(2, round(decay * scale.step_share))
        values = config.merge(values, {"train": {"seed": seed}, "schedule": own})
        return base, config.override(values, self.plan.request.changes)

    def _before_steps(self, name: str) -> tuple[str, Settings]:
        """The same before seed and steps are known."""
        scale, variant = self.plan.scale, self.plan.experiment.variants[name]
        at: Settings = dict(getattr(variant, scale.borrow or self.plan.request.scale))
        base = str(at.pop("extends", scale.base))
        values = config.read_recipe(base)
        for changes in (scale.changes, variant.changes, at):
            values = config.merge(values, changes)
        if self.plan.request.data is not None or "vocab_size" in values.get("model", {}):
            values = config.merge(values, {"model": {"vocab_size": self._vocabulary_size}})
        return base, values

    def _as_long(self, name: str, other: str, seed: int) -> EqualTime:
        """In how many steps a variant takes as long as another's whole run."""
        theirs = self.run(other, seed).recipe
        assert theirs is not None
        recipe = self._with_vocabulary(self._validated(name, self._before_steps(name)[1]))
        flops = [pretraining_cost(r).flops / r.schedule.total_steps for r in (recipe, theirs)]
        steps = theirs.schedule.total_steps
        seconds = [self._seconds_a_step(one) for one in (name, other)]
        known = (seconds[0], seconds[1]) if seconds[0] and seconds[1] else None
        found = EqualTime(other, steps, max(2, round(steps * flops[1] / flops[0])), known)
        self.plan.equal_time[name] = found
        return found

    def _seconds_a_step(self, name: str) -> float:
        """As measured here by `albert bench pretrain`, a stage of its own; 0 before that."""
        plan, variant = self.plan, self.plan.experiment.variants[name]
        base, values = self._before_steps(name)
        values = config.override(values, plan.request.changes)
        data, needs, directory = self._data(variant.text)
        facts = {"recipe": config.as_dict(self._validated(name, values)), "data": data, "processes": plan.request.nproc}
        argv = ["bench", "pretrain", base, "--data", directory, "--rounds", str(_ROUNDS)]
        argv += [*_options(config.read_recipe(base), values), *self._ranks(), *self._ending()]
        stage = self.stage("speed", f"{variant.title}: seconds a step", facts, needs, argv)
        return plan.record(stage).printed.recipe_step.get("seconds", 0.0)

    def _validated(self, name: str, values: Settings) -> PretrainRecipe:
        return config.validate(PretrainRecipe, values, f"{self.plan.experiment.name}, {name}")

    def _with_vocabulary(self, recipe: PretrainRecipe) -> PretrainRecipe:
        """The recipe with the vocabulary that its run will find in the data: what it costs depends on it."""
        return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, vocab_size=self._vocabulary_size))

    @cached_property
    def _vocabulary_size(self) -> int:
        data = self.plan.request.data
        return int(store.read_json(data / "data.json")["vocab_size"]) if data else self.plan.scale.vocabulary


def _options(base: Mapping[str, Any], values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """`-s section.key=value` for all in `values` that `base` has not, or has otherwise."""
    found = []
    for key, value in values.items():
        old = base.get(key)
        if isinstance(value, Mapping):
            found += _options(old if isinstance(old, Mapping) else {}, value, f"{prefix}{key}.")
        elif value != old:
            bare = isinstance(value, str) and re.fullmatch(r"[a-z][a-z_]*", value)
            written = value if bare else config.dump_toml({"v": value}).strip().removeprefix("v = ")
            found += ["-s", f"{prefix}{key}={written}"]
    return found


# ---------------------------------------------------------------- what it costs


def pretraining_cost(recipe: PretrainRecipe, done: int = 0) -> Cost:
    """Of a run after the steps `done`: sequences at full length, the model's FLOPs in full, two checkpoints at once."""
    length, steps = recipe.data.max_seq_length, recipe.schedule.total_steps - done
    tokens = recipe.train.batch_size * length * steps
    flops = tokens * costs.training_flops(recipe.model, length)
    parameters = costs.count(recipe.model).total
    return Cost(parameters, steps, tokens, flops, costs.checkpoint_bytes(recipe.model) * (recipe.train.keep + 1))


def fine_tuning_cost(task: str, run: Run, scale: Scale) -> Cost | None:
    """Of all seeds of a task: inputs at their greatest length; None where no recipe says how it is trained."""
    name = f"finetune/{task}"
    if run.recipe is None or name not in config.shipped_recipes():
        return None
    values, model = config.merge(config.read_recipe(name), scale.task_changes), run.recipe.model
    length = min(values["data"]["max_seq_length"], model.max_position_embeddings)
    steps = values["schedule"]["total_steps"] * scale.task_runs
    tokens = steps * values["train"]["batch_size"] * length
    parameters = costs.count(model).with_pooler
    flops = tokens * costs.training_flops(model, length, masked=0.0)
    return Cost(parameters, steps, tokens, flops, 4 * parameters * scale.task_runs)
