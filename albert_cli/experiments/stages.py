"""Plan an experiment: the stages that pretrain, probe and fine-tune each variant with each seed, and their costs.

`make_plan` takes an experiment and the user's request, and returns an `ExperimentPlan`. It runs nothing. A recipe of a
variant is its base recipe with the changes of the scale, of the variant, and of the request (`-s`), in this order.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from albert_cli import config
from albert_cli.config import RecipeValues
from albert_cli.counting import costs
from albert_cli.data.pairs import PairSettings
from albert_cli.data.records import read_data_facts
from albert_cli.errors import ConfigError
from albert_cli.experiments.experiment import SCALES, Experiment, ExperimentScale
from albert_cli.experiments.inputs import (
    MINIMAL_PAIRS_TASK,
    DataInput,
    find_available_tasks,
    hash_texts,
    load_task_recipe,
    plan_data,
    plan_minimal_pairs,
    plan_probe_data,
    plan_task_data,
)
from albert_cli.experiments.plan import (
    MIN_STEPS,
    OUT,
    ExperimentPlan,
    ExperimentRequest,
    MatchedTime,
    Stage,
    VariantRun,
    add_dependencies,
    create_stage,
)
from albert_cli.experiments.recipe import load_experiment
from albert_cli.experiments.records import SpeedResult, StageRecord, read_result
from albert_cli.experiments.stage_costs import fine_tuning_cost, pretraining_cost
from albert_cli.formatting import format_toml_value
from albert_cli.training.pretrain_recipe import PretrainRecipe, validate_pretrain_recipe
from albert_cli.training.settings import ScheduleSettings
from albert_cli.training.task_recipe import FinetuneRecipe

_SPEED_ROUNDS = 15  # timed steps of `albert bench pretrain`, which measures the speed of a variant


def validate_experiment(name: str) -> tuple[dict[str, object], str]:
    """Check an experiment's file and the recipe of every run; return the file's values, and a summary as text."""
    experiment = load_experiment(name)
    for scale in SCALES:
        make_plan(experiment, ExperimentRequest(scale, Path(), dry_run=True))  # raises an error for an invalid recipe
    title = f"{experiment.title} ({experiment.source})"
    counts = f"{len(experiment.variants)} variants, {len(experiment.claims)} claims"
    return config.read_recipe(name), f"{title}: {counts}, scales {', '.join(experiment.scales)}"


def make_plan(experiment: Experiment, request: ExperimentRequest) -> ExperimentPlan:
    """Plan all stages of an experiment; raise `ConfigError` or `InputError` if a recipe or an option is invalid."""
    if experiment.is_counted:
        return ExperimentPlan(experiment, request, _plan_counts(experiment, request))
    scale = experiment.scales[request.scale]
    seeds = request.seeds if request.seeds is not None else scale.seeds
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: at least one seed is needed", "use --seeds 1 or more")
    if request.minimal_pairs is not None:
        from albert_cli.experiments.minimal_pairs import read_minimal_pairs  # imports torch

        read_minimal_pairs(request.minimal_pairs)
    if not request.text_hashes:  # a later plan of the same command has the same text; tasks are read again
        request = dataclasses.replace(request, text_hashes=hash_texts(request, scale))
    tasks, skipped_tasks = find_available_tasks(request, scale)
    probe_data, skipped_texts = plan_probe_data(request, scale)
    recipes = {task: load_task_recipe(task, scale) for task in tasks}
    planner = _Planner(experiment, request, scale, probe_data, recipes, tasks)
    runs: list[VariantRun] = []
    unmeasured: list[VariantRun] = []
    matched_times: dict[str, MatchedTime] = {}
    speeds: list[Stage] = []
    selected = scale.variants or tuple(experiment.variants)
    measured = {name for name in selected if experiment.variants[name].is_measured}
    needed = add_dependencies(experiment, measured)
    variants = [(name, variant) for name, variant in experiment.variants.items() if name in needed]
    # Ensembles come last, because they need the runs of their members.
    for name, variant in sorted(variants, key=lambda item: bool(item[1].members)):
        for seed in range(seeds):
            if variant.members:
                runs.append(planner.plan_ensemble(name, seed, runs))
            elif name not in measured:
                unmeasured.append(planner.plan_pretraining(name, seed))
            else:
                runs.append(planner.plan_measurements(planner.plan_pretraining(name, seed)))
        if other := variant.match_time_of:
            matched_times[name] = planner.match_time(name, other)
            speeds += [planner.plan_speed(name), planner.plan_speed(other)]
    return ExperimentPlan(experiment, request, runs, unmeasured, speeds, skipped_tasks | skipped_texts, matched_times)


def _plan_counts(experiment: Experiment, request: ExperimentRequest) -> list[VariantRun]:
    """Plan an experiment that trains nothing: `albert params` counts the parameters of each variant."""
    runs = []
    for name, variant in experiment.variants.items():
        shape = str(variant.shape)
        title = f"{variant.title}: parameters"
        stage = create_stage(request, "count", title, {"shape": shape}, (), ("params", shape))
        runs.append(VariantRun(name, seed=0, recipe=None, pretrain=stage))
    return runs


@dataclass(frozen=True)
class _Planner:
    """The planner of single variants: its methods return runs and stages, and change nothing."""

    experiment: Experiment
    request: ExperimentRequest
    scale: ExperimentScale
    probe_data: DataInput
    task_recipes: Mapping[str, FinetuneRecipe | None]  # by available task; None for a task without a recipe
    task_identities: Mapping[str, str]  # the first result of `find_available_tasks`

    def plan_pretraining(self, name: str, seed: int) -> VariantRun:
        """Plan the pretraining of a variant, and before it the runs that it starts from or distils from."""
        variant = self.experiment.variants[name]
        base, values = self._scheduled_settings(name, seed)
        # The other runs that this run needs are identified twice: by their stages' ids in `facts`, and by their
        # directories in `run_directories`, which the command gets as options. So `warm_start` is added to both below.
        warm_start = values.pop("warm_start", {})
        if variant.stacked:
            warm_start["stack"] = True
        recipe = self._validate(name, values)
        if recipe.train.seed != seed:
            raise ConfigError("-s train.seed: every run of a variant has its own seed", "use --seeds N instead")
        data = plan_data(self.request, self.scale, variant.text)
        facts: dict[str, object] = {"data": data.identity, "recipe": config.to_toml_values(recipe)}
        needs = list(data.needs)
        run_directories: RecipeValues = {}
        finished_steps = 0
        teacher_flops = 0.0  # per token
        if variant.after:
            parent = self.plan_pretraining(variant.after, seed)
            assert parent.pretrain is not None and parent.recipe is not None
            key = "continues" if variant.continues else "checkpoint"
            facts["warm_start"] = {key: parent.pretrain.id, **warm_start}
            run_directories["warm_start"] = {key: self._directory(parent.pretrain), **warm_start}
            needs.append(parent.pretrain)
            if variant.continues:
                finished_steps = parent.recipe.schedule.total_steps
                if (steps := recipe.schedule.total_steps) <= finished_steps:
                    message = f"{name}: has {steps:,} steps, and continues a run of {finished_steps:,}"
                    raise ConfigError(message, "use more steps, or leave out -s schedule.total_steps")
        if variant.teacher:
            teacher = self.plan_pretraining(variant.teacher, seed)
            assert teacher.pretrain is not None and teacher.recipe is not None
            facts["teacher"] = teacher.pretrain.id
            run_directories["distill"] = {"teacher": self._directory(teacher.pretrain)}
            needs.append(teacher.pretrain)
            teacher_flops = costs.forward_flops(teacher.recipe.model, recipe.data.max_seq_length)
        options = _format_overrides(config.read_recipe(base), config.merge_values(values, run_directories))
        argv = ["pretrain", base, "--data", data.path, "--out", OUT, *options]
        recipe = self._with_vocabulary_size(recipe)
        cost = pretraining_cost(recipe, finished_steps)
        cost = dataclasses.replace(cost, flops=cost.flops + cost.tokens * teacher_flops)
        title = f"{variant.title}, seed {seed}: pretraining"
        return VariantRun(name, seed, recipe, create_stage(self.request, "pretrain", title, facts, needs, argv, cost))

    def plan_measurements(self, run: VariantRun) -> VariantRun:
        """Return a copy of a run that has its probe and its tasks, too."""
        assert run.pretrain is not None
        names = list(self.task_recipes) if self.experiment.variants[run.variant].has_tasks else []
        pairs = None
        if MINIMAL_PAIRS_TASK in names or self.request.minimal_pairs is not None:
            pairs = plan_minimal_pairs(self.request, self.scale)
        probe = self._plan_probe(run, run.pretrain, pairs)
        tasks = {}
        for name in names:
            tasks[name] = probe if name == MINIMAL_PAIRS_TASK else self._plan_task(name, run, run.pretrain)
        return dataclasses.replace(run, probe=probe, tasks=tasks)

    def plan_ensemble(self, name: str, seed: int, runs: Sequence[VariantRun]) -> VariantRun:
        """Plan an ensemble of fine-tuned models for each task; `runs` contains the runs of its members.

        Raises `ConfigError` if a member is not measured at this scale, or not on a task.
        """
        variant = self.experiment.variants[name]
        members = [run for run in runs if run.seed == seed and run.variant in variant.members]
        tasks = {}
        for task in self.task_recipes:
            if task == MINIMAL_PAIRS_TASK:  # nothing is fine-tuned, so there are no models to average
                continue
            needs = [member.tasks[task] for member in members if task in member.tasks]
            if len(needs) < len(variant.members):
                message = (
                    f"{self.experiment.argument}: a member of {name} has no result on {task} at {self.request.scale}"
                )
                hint = "add all members to the scale's `variants`, and remove is_measured and has_tasks from them"
                raise ConfigError(message, hint)
            data = plan_task_data(task, self.task_identities[task], self.request, self.scale)
            argv = ["ensemble", task, *map(self._directory, needs), "--data", data.path, "--out", OUT]
            title = f"{variant.title}, seed {seed}: {task}"
            facts = {"together": task}  # the members are in `needs`, whose ids are part of the stage's id
            tasks[task] = create_stage(self.request, "task", title, facts, needs, argv)
        return VariantRun(name, seed, None, None, tasks=tasks)

    def match_time(self, name: str, other: str) -> MatchedTime:
        """Return the number of steps in which a variant takes as long as the whole run of another variant.

        The seconds per step are those that the stages of `plan_speed` measured. Before that they are computed from
        `--tflops`, or unknown.
        """
        other_recipe = self.plan_pretraining(other, 0).recipe
        assert other_recipe is not None
        _, values = self._variant_settings(name)
        values = config.apply_overrides(values, self.request.changes, PretrainRecipe)
        recipe = self._with_vocabulary_size(self._validate(name, values))
        steps = other_recipe.schedule.total_steps
        flops = pretraining_cost(recipe).flops / recipe.schedule.total_steps  # of a step
        other_flops = pretraining_cost(other_recipe).flops / steps
        steps_by_flops = max(MIN_STEPS, round(steps * other_flops / flops))
        seconds = self._read_speed(name)
        other_seconds = self._read_speed(other)
        if seconds and other_seconds:
            return MatchedTime(other, steps, steps_by_flops, (seconds, other_seconds), is_measured=True)
        speed = self.request.flops_per_second(name)
        other_speed = self.request.flops_per_second(other)
        if speed and other_speed:
            return MatchedTime(other, steps, steps_by_flops, (flops / speed, other_flops / other_speed))
        return MatchedTime(other, steps, steps_by_flops, None)

    def plan_speed(self, name: str) -> Stage:
        """Plan the measurement of a variant's seconds per step with `albert bench pretrain`."""
        variant = self.experiment.variants[name]
        base, values = self._variant_settings(name)
        values = config.apply_overrides(values, self.request.changes, PretrainRecipe)
        data = plan_data(self.request, self.scale, variant.text)
        recipe = config.to_toml_values(self._validate(name, values))
        facts = {"recipe": recipe, "data": data.identity, "processes": self.request.nproc, "device": self._device_type}
        argv = ["bench", "pretrain", base, "--data", data.path, "--rounds", str(_SPEED_ROUNDS)]
        argv += _format_overrides(config.read_recipe(base), values)
        return create_stage(self.request, "speed", f"{variant.title}: seconds per step", facts, data.needs, argv)

    @cached_property
    def _device_type(self) -> str:
        """The type of the requested device: speeds on another type are measured again."""
        if self.request.device != "auto":
            return self.request.device
        from albert_cli.training.device import choose_device  # imports torch

        return choose_device("auto").type

    def _read_speed(self, name: str) -> float | None:
        """Return a variant's measured seconds per step; None before the measurement."""
        result = read_result(self.request, self.plan_speed(name), StageRecord[SpeedResult])
        return result.recipe_step.seconds if result else None

    # ------------------------------------------------------------ probes and tasks

    def _plan_probe(self, run: VariantRun, pretrain: Stage, minimal_pairs: DataInput | None) -> Stage:
        """Plan the intrinsic scores, and the scores of minimal pairs.

        All variants are scored with the sampling settings of the scale, so that their scores can be compared. Only the
        length of the sequences differs if a model has fewer positions.
        """
        base = config.merge_values(config.read_recipe(self.scale.base), self.scale.changes)
        pairs = config.to_toml_values(
            config.validate_recipe(PairSettings, base.get("data", {}), self.experiment.argument)
        )
        if run.recipe is not None:
            pairs["max_seq_length"] = min(pairs["max_seq_length"], run.recipe.model.max_position_embeddings)
        data = self.probe_data
        needs = [pretrain, *data.needs]
        facts: dict[str, object] = {"pairs": pairs, "sequences": self.scale.probe_sequences, "data": data.identity}
        argv = ["probe", self._directory(pretrain), "--data", data.path]
        argv += ["--sequences", str(self.scale.probe_sequences), *_format_overrides({}, {"data": pairs})]
        if minimal_pairs is not None:
            needs += minimal_pairs.needs
            facts["minimal_pairs"] = minimal_pairs.identity
            argv += ["--minimal-pairs", minimal_pairs.path]
        return create_stage(self.request, "probe", f"{self._title(run)}: intrinsic scores", facts, needs, argv)

    def _plan_task(self, task: str, run: VariantRun, pretrain: Stage) -> Stage:
        """Plan the fine-tuning runs of a task."""
        scale = self.scale
        data = plan_task_data(task, self.task_identities[task], self.request, scale)
        facts = {"task": task, "changes": scale.task_changes, "runs": scale.task_runs, "data": data.identity}
        argv = ["eval", task, "--checkpoint", self._directory(pretrain), "--data", data.path, "--out", OUT]
        argv += ["--runs", str(scale.task_runs), "--no-baselines", *_format_overrides({}, scale.task_changes)]
        cost = None
        if (recipe := self.task_recipes[task]) is not None and run.recipe is not None:
            cost = fine_tuning_cost(recipe, run.recipe.model, scale)
        title = f"{self._title(run)}: {task}"
        return create_stage(self.request, "task", title, facts, [pretrain, *data.needs], argv, cost)

    # ------------------------------------------------------------ recipes

    def _variant_settings(self, name: str) -> tuple[str, RecipeValues]:
        """Return the name of a variant's base recipe, and its values with the changes of the scale and of the variant.

        The vocabulary size is that of the data, with which it must agree. It is left out if the recipe has none, but
        always set for `--data`.
        """
        variant = self.experiment.variants[name]
        at_scale = dict(variant.changes_at(self.scale.borrow or self.request.scale))
        base = str(at_scale.pop("extends", self.scale.base))
        values = config.read_recipe(base)
        for changes in (self.scale.changes, variant.changes, at_scale):
            values = config.merge_values(values, changes)
        config.check_sections(PretrainRecipe, values, self._origin(name))
        if self.request.data is not None or "vocab_size" in values.get("model", {}):
            values = config.merge_values(values, {"model": {"vocab_size": self._vocabulary_size}})
        return base, values

    def _scheduled_settings(self, name: str, seed: int) -> tuple[str, RecipeValues]:
        """Return the name of a variant's base recipe, and the values of a run with this seed.

        The number of steps is the recipe's, multiplied by the scale's `step_fraction`. `-s` replaces this number, and a
        matched time replaces both.
        """
        base, values = self._variant_settings(name)
        schedule = config.validate_recipe(ScheduleSettings, values.get("schedule", {}), self._origin(name), "schedule")
        scaled = {"total_steps": self._scale_steps(schedule.total_steps)}
        if schedule.decay_steps:
            scaled["decay_steps"] = self._scale_steps(schedule.decay_steps)
        values = config.merge_values(values, {"train": {"seed": seed}, "schedule": scaled})
        values = config.apply_overrides(values, self.request.changes, PretrainRecipe)
        config.check_sections(PretrainRecipe, values, self._origin(name))
        if other := self.experiment.variants[name].match_time_of:
            matched_steps = self.match_time(name, other).steps
            values = config.merge_values(values, {"schedule": {"total_steps": matched_steps}})
        return base, values

    def _scale_steps(self, steps: int) -> int:
        return max(MIN_STEPS, round(steps * self.scale.step_fraction))

    def _validate(self, name: str, values: RecipeValues) -> PretrainRecipe:
        return validate_pretrain_recipe(values, self._origin(name))

    def _origin(self, name: str) -> str:
        """Return the beginning of a message about a variant's recipe."""
        return f"{self.experiment.argument}, {name}"

    @cached_property
    def _vocabulary_size(self) -> int:
        """The vocabulary size of `--data`, or of the vocabulary that the experiment trains."""
        return read_data_facts(self.request.data).vocab_size if self.request.data else self.scale.vocabulary

    def _with_vocabulary_size(self, recipe: PretrainRecipe) -> PretrainRecipe:
        """Return the recipe as the run will use it, with the vocabulary size of the data, on which costs depend."""
        model = dataclasses.replace(recipe.model, vocab_size=self._vocabulary_size)
        return dataclasses.replace(recipe, model=model)

    def _title(self, run: VariantRun) -> str:
        return f"{self.experiment.variants[run.variant].title}, seed {run.seed}"

    def _directory(self, stage: Stage) -> str:
        return str(self.request.directory(stage))


def _format_overrides(base: Mapping[str, object], values: Mapping[str, object], prefix: str = "") -> list[str]:
    """Return an option `-s section.key=value` for every value that differs from the base recipe.

    values: by key; a mapping is a section. prefix: the names of the enclosing sections, each followed by a dot.
    """
    options = []
    for key, value in values.items():
        old_value = base.get(key)
        if isinstance(value, Mapping):
            section = old_value if isinstance(old_value, Mapping) else {}
            options += _format_overrides(section, value, f"{prefix}{key}.")
        elif value != old_value:
            options += ["-s", f"{prefix}{key}={_format_toml(value)}"]
    return options


def _format_toml(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[a-z][a-z_]*", value):
        return value  # `-s` accepts words without quotes
    return format_toml_value(value)
