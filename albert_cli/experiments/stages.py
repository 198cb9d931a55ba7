"""The stages of an experiment: every variant's runs, what is measured of them, and what each takes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from albert_cli import config
from albert_cli.counting import costs
from albert_cli.data.pairs import PairSettings
from albert_cli.errors import ConfigError
from albert_cli.experiments import inputs
from albert_cli.experiments.plan import OUT, Cost, ExperimentPlan, ExperimentRequest, MatchedWallClock, VariantRun
from albert_cli.experiments.recipe import SCALES, Experiment, ExperimentScale, Settings, load_experiment
from albert_cli.training.pretrain_recipe import PretrainRecipe
from albert_cli.training.task_recipe import FinetuneRecipe

_ROUNDS = 15  # timed steps of a variant that is to train as long as another


def validate_experiment(name: str) -> tuple[dict[str, Any], str]:
    """Check an experiment's file with every recipe that it makes; its values as they are, and as a sentence."""
    experiment = load_experiment(name)
    for scale in SCALES:
        make_plan(experiment, ExperimentRequest(scale, Path(), dry_run=True))
    about = f"{experiment.title} ({experiment.source}): {len(experiment.variants)} variants"
    return config.read_recipe(name), f"{about}, {len(experiment.claims)} claims, scales {', '.join(experiment.scales)}"


def make_plan(experiment: Experiment, request: ExperimentRequest) -> ExperimentPlan:
    """An experiment as stages; raises `ConfigError` where a recipe or an option cannot be."""
    plan = ExperimentPlan(experiment, request)
    if experiment.is_counted:
        for name, variant in experiment.variants.items():
            shape, title = str(variant.shape), f"{variant.title}: parameters"
            plan.runs.append(
                VariantRun(name, 0, None, plan.stage("count", title, {"shape": shape}, (), ("params", shape)))
            )
        return plan
    seeds = request.seeds if request.seeds is not None else plan.scale.seeds
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: at least one is needed")
    builder = _Builder(plan, {task: _task_recipe(task, plan.scale) for task in inputs.available_tasks(plan)})
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


@dataclass
class _Builder:
    """Takes the stages of a variant into the plan, each once: `tasks` are those to fine-tune on, with their recipes."""

    plan: ExperimentPlan
    tasks: Mapping[str, FinetuneRecipe | None]
    _made: dict[tuple[str, int], VariantRun | None] = field(default_factory=dict)

    def run(self, name: str, seed: int) -> VariantRun:
        """The pretraining of a variant with a seed, after whatever it starts from."""
        plan, variant = self.plan, self.plan.experiment.variants[name]
        if (name, seed) in self._made:
            if (known := self._made[name, seed]) is None:
                raise ConfigError(f"{plan.experiment.name}: the variant {name} starts from itself")
            return known
        self._made[name, seed] = None  # begun
        base, values = self._settings(name, seed)
        own_warm_start = values.pop("warm_start", {})  # how, of a parent that is known below
        data, needs, directory = inputs.data(plan, variant.text)
        facts: dict[str, Any] = {"data": data}
        done, others = 0, dict[str, Any]()
        if variant.after:
            before = self.run(variant.after, seed)
            parent, how = before.pretrain, "continues" if variant.continues else "checkpoint"
            how_else = {**own_warm_start, **({"stack": True} if variant.stacked else {})}
            facts["warm_start"] = {how: parent, **how_else} if variant.continues or how_else else parent
            needs = (*needs, parent)
            others["warm_start"] = {how: str(plan.directory(parent)), **how_else}
            if variant.continues and before.recipe is not None:
                done = before.recipe.schedule.total_steps
        if variant.teacher:
            facts["teacher"] = teacher = self.run(variant.teacher, seed).pretrain
            needs = (*needs, teacher)
            others["distill"] = {"teacher": str(plan.directory(teacher))}
        recipe = self._validated(name, values)
        if recipe.train.seed != seed:
            raise ConfigError("-s train.seed: every run of a variant has another seed", "--seeds N says how many")
        facts["recipe"] = config.to_toml_values(recipe)  # without what it starts from, which says where the files lie
        changes = _options(config.read_recipe(base), config.merge_values(values, others))
        argv = ["pretrain", base, "--data", directory, "--out", OUT, *changes, *self._ranks()]
        recipe = self._with_vocabulary(recipe)
        title, cost = f"{variant.title}, seed {seed}: pretraining", pretraining_cost(recipe, done)
        if variant.teacher and (taught := self.run(variant.teacher, seed).recipe):
            forward = costs.forward_flops(taught.model, recipe.data.max_seq_length)
            cost = dataclasses.replace(cost, flops=cost.flops + cost.tokens * forward)
        made = VariantRun(name, seed, recipe, plan.stage("pretrain", title, facts, needs, argv, cost))
        self._made[name, seed] = made
        return made

    def measured(self, run: VariantRun) -> VariantRun:
        """The run with its probe, on the usual text and the scale's own masks, and its tasks."""
        plan, scale = self.plan, self.plan.scale
        of, checkpoint = f"{plan.experiment.variants[run.variant].title}, seed {run.seed}", plan.directory(run.pretrain)
        data, needs, directory = inputs.probed(plan)
        own = config.merge_values(config.read_recipe(scale.base), scale.changes).get("data", {})
        pairs = config.to_toml_values(
            config.validate_recipe(PairSettings, own, plan.experiment.name)
        )  # whatever a run's are
        if run.recipe is not None:  # but no longer than it can read
            pairs["max_seq_length"] = min(pairs["max_seq_length"], run.recipe.model.max_position_embeddings)
        facts: dict[str, Any] = {"pairs": pairs, "sequences": scale.probe_sequences, "data": data}
        argv = ["probe", str(checkpoint), "--data", directory, "--sequences", str(scale.probe_sequences)]
        argv += _options({}, {"data": pairs})
        probe = plan.stage("probe", f"{of}: intrinsic scores", facts, (run.pretrain, *needs), argv)
        tasks, runs = {}, scale.task_runs
        for name, recipe in self.tasks.items() if plan.experiment.variants[run.variant].has_tasks else ():
            folder, table = inputs.add_task_data(plan, name)
            facts = {"task": name, "changes": scale.task_changes, "runs": runs, "data": table or folder}
            argv = ["eval", name, "--checkpoint", str(checkpoint), "--data", folder, "--out", OUT, "--runs", str(runs)]
            argv += ["--no-baselines", *_options({}, scale.task_changes)]
            cost = fine_tuning_cost(recipe, run, scale)
            tasks[name] = plan.stage("task", f"{of}: {name}", facts, (run.pretrain, *table), argv, cost)
        return dataclasses.replace(run, probe=probe, tasks=tasks)

    def ensemble(self, name: str, seed: int) -> VariantRun:
        """The fine-tuned models of a variant's members together, by task."""
        variant, tasks = self.plan.experiment.variants[name], {}
        trained = {run.variant: run for run in self.plan.runs if run.seed == seed and run.recipe}
        members = [trained[member] for member in variant.members if member in trained]
        for task in self.tasks:
            needs = [member.tasks[task] for member in members]
            argv = ["ensemble", task, *(str(self.plan.directory(need)) for need in needs)]
            argv += ["--data", inputs.add_task_data(self.plan, task)[0], "--out", OUT]
            title = f"{variant.title}, seed {seed}: {task}"
            tasks[task] = self.plan.stage("task", title, {"together": task}, needs, argv)
        return VariantRun(name, seed, None, "", None, tasks)

    def _ranks(self) -> list[str]:
        return ["--nproc", str(self.plan.request.nproc)] if self.plan.request.nproc > 1 else []

    # ------------------------------------------------------------ recipes

    def _settings(self, name: str, seed: int) -> tuple[str, Settings]:
        """The base recipe of a variant, and its values with every change on them."""
        scale, other = self.plan.scale, self.plan.experiment.variants[name].time_of
        base, values = self._before_steps(name)
        schedule = values.get("schedule", {})
        steps = schedule.get("total_steps", PretrainRecipe().schedule.total_steps) * scale.step_share
        own = {"total_steps": max(2, round(steps))}
        if decay := schedule.get("decay_steps"):
            own["decay_steps"] = max(2, round(decay * scale.step_share))
        values = config.merge_values(values, {"train": {"seed": seed}, "schedule": own})
        values = config.apply_overrides(values, self.plan.request.changes)
        if other is not None:  # whatever its own steps, or those that were asked for, are
            values = config.merge_values(values, {"schedule": {"total_steps": self._as_long(name, other, seed).steps}})
        return base, values

    def _before_steps(self, name: str) -> tuple[str, Settings]:
        """The same before seed and steps are known."""
        scale, variant = self.plan.scale, self.plan.experiment.variants[name]
        at: Settings = dict(getattr(variant, scale.borrow or self.plan.request.scale))
        base = str(at.pop("extends", scale.base))
        values = config.read_recipe(base)
        for changes in (scale.changes, variant.changes, at):
            values = config.merge_values(values, changes)
        if self.plan.request.data is not None or "vocab_size" in values.get("model", {}):
            values = config.merge_values(values, {"model": {"vocab_size": self.plan.vocab_size}})
        return base, values

    def _as_long(self, name: str, other: str, seed: int) -> MatchedWallClock:
        """In how many steps a variant takes as long as another's whole run."""
        theirs = self.run(other, seed).recipe
        assert theirs is not None
        values = config.apply_overrides(self._before_steps(name)[1], self.plan.request.changes)
        recipe = self._with_vocabulary(self._validated(name, values))
        flops = [pretraining_cost(r).flops / r.schedule.total_steps for r in (recipe, theirs)]
        steps = theirs.schedule.total_steps
        seconds = [self._seconds_a_step(one) for one in (name, other)]
        known = (seconds[0], seconds[1]) if seconds[0] and seconds[1] else None
        found = MatchedWallClock(other, steps, max(2, round(steps * flops[1] / flops[0])), known)
        self.plan.equal_time[name] = found
        return found

    def _seconds_a_step(self, name: str) -> float:
        """As measured here by `albert bench pretrain`, a stage of its own; 0 before that."""
        plan, variant = self.plan, self.plan.experiment.variants[name]
        base, values = self._before_steps(name)
        values = config.apply_overrides(values, plan.request.changes)
        data, needs, directory = inputs.data(plan, variant.text)
        facts = {
            "recipe": config.to_toml_values(self._validated(name, values)),
            "data": data,
            "processes": plan.request.nproc,
        }
        argv = ["bench", "pretrain", base, "--data", directory, "--rounds", str(_ROUNDS)]
        argv += [*_options(config.read_recipe(base), values), *self._ranks()]
        stage = self.plan.stage("speed", f"{variant.title}: seconds a step", facts, needs, argv)
        return plan.record(stage).recipe_step.get("seconds", 0.0)

    def _validated(self, name: str, values: Settings) -> PretrainRecipe:
        return config.validate_recipe(PretrainRecipe, values, f"{self.plan.experiment.name}, {name}")

    def _with_vocabulary(self, recipe: PretrainRecipe) -> PretrainRecipe:
        """The recipe with the vocabulary that its run will find in the data: what it costs depends on it."""
        return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, vocab_size=self.plan.vocab_size))


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
    parameters = costs.count_parameters(recipe.model).total
    return Cost(parameters, steps, tokens, flops, costs.checkpoint_bytes(recipe.model) * (recipe.train.keep + 1))


def _task_recipe(task: str, scale: ExperimentScale) -> FinetuneRecipe | None:
    """How a task is learnt at a scale, checked before anything is trained; None where no recipe says it."""
    name = f"finetune/{task}"
    if name not in config.shipped_recipes():
        return None
    return config.validate_recipe(
        FinetuneRecipe, config.merge_values(config.read_recipe(name), scale.task_changes), name
    )


def fine_tuning_cost(recipe: FinetuneRecipe | None, run: VariantRun, scale: ExperimentScale) -> Cost | None:
    """Of all seeds of a task: inputs at their greatest length; None where that many steps are not known beforehand."""
    if recipe is None or run.recipe is None or recipe.schedule.total_steps is None:
        return None
    model = run.recipe.model
    length = min(recipe.data.max_seq_length, model.max_position_embeddings)
    steps = recipe.schedule.total_steps * scale.task_runs
    tokens = steps * recipe.train.batch_size * length
    parameters = costs.count_parameters(model).with_pooler
    flops = tokens * costs.training_flops(model, length, masked=0.0)
    return Cost(parameters, steps, tokens, flops, 4 * parameters * scale.task_runs)
