"""`albert pretrain`: from a data directory and a recipe to a run of checkpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from albert_cli import config, console, journal, store
from albert_cli.data.cooccurrence import compute_word_vectors
from albert_cli.data.records import read_data_facts
from albert_cli.data.shards import TokenCorpus
from albert_cli.data.verification import verify_data
from albert_cli.errors import ConfigError
from albert_cli.model import hub
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.informed_init import InformedInit, apply_informed_init, word_dimensions
from albert_cli.ranks import RankGroup, is_main, process_group
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training import capacity, checkpoint, plan, run
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.device import choose_device, prepare_model, print_idle_gpus, resolve_auto, use_threads
from albert_cli.training.distill import Teacher
from albert_cli.training.log import LossHints
from albert_cli.training.loop import Loop
from albert_cli.training.objectives import PretrainingCorpora, PretrainingJob
from albert_cli.training.optimizers import make_optimizer
from albert_cli.training.pretrain_recipe import PretrainRecipe, load_pretrain_recipe
from albert_cli.training.settings import parse_duration
from albert_cli.training.warm_start import PreviousRun, copy_parent_weights, load_parent


def pretrain(
    recipe: str,
    data: Path,
    out: Path,
    overrides: Sequence[str] = (),
    *,
    resume: run.ResumeMode = "auto",
    max_time: str | None = None,
    dry_run: bool = False,
    device: str = "auto",
    verify: bool = False,
) -> dict[str, Any]:
    """Pretrain and return what `--json` prints; see `albert pretrain --help`."""
    corpus, heldout = TokenCorpus.open(data, "train"), TokenCorpus.open(data, "heldout")
    if is_main():
        verify_data(data, everything=verify)
    vocabulary = Vocabulary.load(corpus.vocabulary_dir)
    resolved = load_pretrain_recipe(recipe, overrides, vocabulary.size)
    budget = parse_duration(max_time, "--max-time") if max_time else None
    target = choose_device(device)
    print_idle_gpus(target)
    with process_group(target.type) as group:
        entropy = read_data_facts(data).unigram_entropy_nats
        others = _open_evaluation_corpora(resolved.evaluation, vocabulary, corpus.vocabulary_dir, verify)
        text = PretrainingCorpora(corpus, heldout, vocabulary, entropy, others)
        pretraining = Pretraining(resolved, text, store.fingerprint(data), target, group)
        if dry_run:
            return pretraining.plan(out, budget)
        with run.write_run_status(out) as status:
            return pretraining.train(out, status, resume, budget)


def show_config(recipe: str, data: Path, overrides: Sequence[str]) -> tuple[dict[str, Any], str]:
    """The resolved recipe, as values and as TOML."""
    vocabulary = Vocabulary.load(TokenCorpus.open(data).vocabulary_dir)
    resolved = load_pretrain_recipe(recipe, overrides, vocabulary.size)
    return config.to_toml_values(resolved), config.dump_toml(resolved).rstrip()


def _open_evaluation_corpora(
    evaluation: Sequence[str], vocabulary: Vocabulary, made_with: Path, verify: bool
) -> dict[str, TokenCorpus]:
    """The corpora of `evaluation`, by the names of their directories; what they hold out, where they do."""
    found = {}
    for directory in map(Path, evaluation):
        corpus = TokenCorpus.open(directory, "heldout")
        if is_main():
            verify_data(directory, everything=verify)
        found[directory.name] = corpus if corpus.tokens else TokenCorpus.open(directory, "train")
        if Vocabulary.load(corpus.vocabulary_dir).fingerprint != vocabulary.fingerprint:
            raise ConfigError(
                f"{directory}: was made with another vocabulary than the data to train on",
                f"albert data … --vocab {made_with} --out {directory}",
            )
    if len(found) < len(evaluation):
        raise ConfigError(
            f"evaluation names two directories alike: {', '.join(evaluation)}",
            "scores go by the directory's last name, so rename one",
        )
    return found


@dataclass
class Pretraining:
    """A run whose inputs are known to fit together; `resolve` completes its recipe."""

    recipe: PretrainRecipe
    text: PretrainingCorpora
    data_fingerprint: str
    device: torch.device
    group: RankGroup
    begun: float = field(default_factory=time.monotonic)

    def train(self, out: Path, status: run.RunStatus, resume: run.ResumeMode, budget: float | None) -> dict[str, Any]:
        """Run to the last step, or go on with what `out` holds; what came of it."""
        self.resolve(out, resume, budget)
        recipe = self.recipe
        parents = {"data": self.data_fingerprint}
        if recipe.warm_start is not None:
            parents["warm_start"] = str(recipe.warm_start.fingerprint)
        if recipe.distill is not None:
            parents["teacher"] = str(recipe.distill.fingerprint)
        with use_threads(recipe.train.threads):
            job = self.new_job()
            optimizer = make_optimizer(job.model, recipe.optimizer)
            if self.group.rank == 0:
                store.write_text(out / "recipe.toml", job.recipe)
            begin = partial(self.begin, job, optimizer, out)
            state = run.resume_state(out, job.model, optimizer, self.group, parents, begin)
            run.mark_running(out, status, state.step, recipe.schedule.total_steps)
            job.last_metrics = _last_evaluation(out, state.step)
            hints = LossHints(self.text.train.unigram_entropy(), recipe.schedule.warmup)
            loop = Loop(job, optimizer, recipe.schedule, out, self.group, "pretrain", parents, state, hints)
            loop.run()
            loop.save()
        final = store.saved_steps(out)[-1]
        speeds = [
            r["tokens_per_second"] for r in journal.read_journal(out / journal.JOURNAL) if "tokens_per_second" in r
        ]
        metrics = _last_evaluation(out, recipe.schedule.total_steps)
        if {"mlm_loss", "mlm_accuracy", "unigram_entropy"} <= metrics.keys():  # a damaged line may lack some
            metrics["below_unigram_entropy"] = round(metrics["unigram_entropy"] - metrics["mlm_loss"], 4)
        state = checkpoint.read_state(final)
        return {
            "checkpoint": str(final),
            "steps": state.step,
            "seconds": round(state.seconds, 1),
            "tokens_per_second": speeds[-1] if speeds else None,
            **metrics,
            "model_sha256": store.sha256_file(final / hub.WEIGHTS_FILE),
        }

    def plan(self, out: Path, budget: float | None) -> dict[str, Any]:
        """What a run would do; the arithmetic is printed before anything is measured, unless as JSON."""
        self.resolve(out, "auto", budget)
        found = plan.describe_run(self.recipe, self.text.train, out, self.device, self.group)
        console.print_partial_result(plan.format_plan(found))
        return found | plan.estimate_duration(self.recipe, self.device, self.group, self.new_job)

    # ------------------------------------------------------------ the first weights

    def new_job(self) -> PretrainingJob:
        """A job with freshly initialised weights: the same for every process that starts from this seed."""
        recipe = self.recipe
        torch.manual_seed(recipe.train.seed)
        model = PretrainingModel(recipe.model)
        if recipe.masked_bias == "unigram":
            counts = self.text.train.unigram_counts() + 1
            with torch.no_grad():
                model.masked.bias.copy_(torch.from_numpy(np.log(counts / counts.sum())))
        prepare_model(model, recipe.train, self.device)
        return PretrainingJob(model, recipe, self.text, teacher=self._teacher)

    def begin(self, job: PretrainingJob, optimizer: Optimizer, out: Path) -> TrainState:
        """Where a run stands at its first start: drawn weights, a parent's, or what `[init]` makes, which is kept."""
        model, init = job.model, self.recipe.init
        if self._run_before is not None and self._parent is not None:
            before = checkpoint.restore_checkpoint(self._run_before.directory, optimizer)
            copy_parent_weights(model, self._parent, f"with its moments, from step {before.step:,} on")
            return TrainState(before.step, before.seconds)
        if self._parent is not None:
            copy_parent_weights(
                model, self._parent, stack=bool(self.recipe.warm_start and self.recipe.warm_start.stack)
            )
        if init == InformedInit():
            return TrainState()
        if self.group.rank == 0:
            apply_informed_init(model.cpu(), init, self._word_vectors, self.recipe.train.seed)
            model.to(self.device)
        # Decompositions of matrices may differ in their last bits between the ranks' processors.
        self.group.broadcast_tensors(model.parameters())
        if self.group.rank == 0:
            parents = {"data": self.data_fingerprint}
            # There is one where an attempt ended before its first step was saved.
            with store.commit_directory(out / hub.INIT_DIRECTORY, "checkpoint", parents, replace=True) as staging:
                job.write_model(staging)
        return TrainState()

    @cached_property
    def _teacher(self) -> Teacher | None:
        distill, length = self.recipe.distill, self.recipe.data.max_seq_length
        return Teacher.read(distill, self.text.vocabulary, length, self.device) if distill else None

    @cached_property
    def _word_vectors(self) -> torch.Tensor | None:
        """The corpus's word vectors, where `[init]` asks for them: up to a minute's work, for rank 0 alone."""
        recipe = self.recipe
        if recipe.init.words == "random":
            return None
        return compute_word_vectors(self.text.train, word_dimensions(recipe.init, recipe.model), recipe.train.seed)

    @cached_property
    def _parent(self) -> hub.Checkpoint | None:
        recipe = self.recipe
        return load_parent(recipe.warm_start, recipe.model, self.text.vocabulary) if recipe.warm_start else None

    @cached_property
    def _run_before(self) -> PreviousRun | None:
        warm_start = self.recipe.warm_start
        if warm_start is None or warm_start.continues is None or self._parent is None:
            return None
        return PreviousRun.read(self._parent.directory, config.default_values(PretrainRecipe))

    # ------------------------------------------------------------ the recipe, complete

    def resolve(self, out: Path, resume: run.ResumeMode, budget: float | None) -> None:
        """Complete the recipe, and refuse a directory, a recipe or a disk that does not fit.

        In this order: the checkpoint to begin with, the teacher, what "auto" stands for, the steps that fit into a
        time; then what a resumed run must not change.
        """
        old = run.load_saved_recipe(out, resume)
        self.group.barrier()  # rank 0 must not write its recipe before all have looked
        self._resolve_warm_start(out, old)
        if self.recipe.distill is not None:
            self.recipe = replace(self.recipe, distill=self.recipe.distill.resolved())
        self._resolve_auto(old)
        few = self.recipe.micro_batch
        capacity.warn_training_memory(plan.estimate_run_memory(self.recipe, self.device, few), few, self.device)
        if budget is not None:
            # The first start froze the schedule; asking for a time again means that run.
            if old is not None:
                kept, recipe = old["schedule"], self.recipe
                frozen = {key: kept.get(key) for key in ("total_steps", "warmup_steps", "decay_steps")}
                batch = replace(recipe.batch, warmup_steps=old.get("batch", {}).get("warmup_steps", 0))
                self.recipe = replace(recipe, schedule=replace(recipe.schedule, **frozen), batch=batch)
                console.info(f"{out}: keeps the {kept['total_steps']:,} steps of its first start")
            else:
                if self.group.rank == 0:
                    _ = self._word_vectors  # they are of the budget too
                self.recipe = plan.fit_steps_to_budget(budget, self.begun, self.recipe, self.new_job(), self.group)
        if not store.saved_steps(out):
            self._name_changes()
        if old is not None:
            run.check_same_recipe(out, old, self.recipe)
        if self.group.rank == 0:
            plan.check_disk(self.recipe, out)

    def _resolve_warm_start(self, out: Path, old: Mapping[str, Any] | None) -> None:
        """Note which checkpoint the run starts from; once it has a step of its own, that is no longer looked at.

        A warm-up that was over stays over: the continued run has that of the run before.
        """
        warm_start, schedule = self.recipe.warm_start, self.recipe.schedule
        if warm_start is None:
            return
        if store.saved_steps(out):
            kept = (old or {}).get("warm_start", {})
            warm_start = replace(
                warm_start, fingerprint=warm_start.fingerprint or kept.get("fingerprint"), changes=kept.get("changes")
            )
            step = kept.get("step", 0) if warm_start.continues is not None else None
            warmup = old["schedule"].get("warmup_steps", -1) if old else -1
        else:
            assert self._parent is not None
            warm_start = replace(warm_start, fingerprint=store.fingerprint(self._parent.directory))
            before = self._run_before
            step, warmup = (before.step, before.warmup) if before else (None, -1)
        if step is not None and 0 <= warmup <= step:
            schedule = replace(schedule, warmup_steps=warmup)
        self.recipe = replace(self.recipe, warm_start=replace(warm_start, step=step), schedule=schedule)

    def _resolve_auto(self, old: Mapping[str, Any] | None) -> None:
        """Put what "auto" stands for into the recipe: what it stood for at the first start, or what rank 0 finds."""
        recipe, batch = self.recipe, self.recipe.batch
        train = resolve_auto(
            run.reuse_resolved_auto(recipe.train, old), recipe.model, self.device,
            sequences=recipe.micro_batch, length=recipe.data.max_seq_length,
        )  # fmt: skip
        if batch.micro_tokens == "auto":
            kept = old.get("batch", {}).get("micro_tokens", 0) if old else None
            own = (
                plan.resolve_micro_tokens(replace(recipe, train=train), self.device, self.group)
                if kept is None
                else kept
            )
            batch = replace(batch, micro_tokens=own)
        train, batch = self.group.broadcast((train, batch))
        self.recipe = replace(recipe, train=train, batch=batch)

    def _name_changes(self) -> None:
        """Note and print what a continued run changes; raises `ConfigError` where nothing is left for it to do."""
        warm_start, before, total = self.recipe.warm_start, self._run_before, self.recipe.schedule.total_steps
        if warm_start is None or before is None:
            return
        if total <= before.step:
            raise ConfigError(
                f"{before.directory}: is at step {before.step:,}, and schedule.total_steps is {total:,}",
                f"it counts the steps of the run before too: -s schedule.total_steps={2 * before.step}",
            )
        changes = before.changes(config.to_toml_values(self.recipe), self.data_fingerprint)
        self.recipe = replace(self.recipe, warm_start=replace(warm_start, changes=changes))
        console.info(f"goes on from {before.directory}, and changes: {'; '.join(changes) or 'nothing'}")


def _last_evaluation(out: Path, step: int) -> dict[str, float]:
    """The newest evaluation that the journal holds at or before a step."""
    path = out / journal.JOURNAL
    records = journal.read_journal(path) if path.is_file() else []
    return next((r["eval"] for r in reversed(records) if "eval" in r and r["step"] <= step), {})


def format_summary(result: Mapping[str, Any]) -> str:
    """The result of a run as text."""
    lines = [f"{result['checkpoint']}: {result['steps']:,} steps in {console.format_duration(result['seconds'])}"]
    if "below_unigram_entropy" in result:
        below = result["below_unigram_entropy"]
        side = "below" if below >= 0 else "above"
        lines.append(
            f"held-out masked-word loss {result['mlm_loss']:.3f} nats, {abs(below):.3f} {side} the unigram entropy of "
            f"the same text ({result['unigram_entropy']:.3f}); accuracy {result['mlm_accuracy']:.1%}"
        )
    if "order_accuracy" in result:
        lines.append(f"held-out sentence-order accuracy {result['order_accuracy']:.1%}")
    for corpus in (key.removesuffix("mlm_loss") for key in result if key.endswith("/mlm_loss")):
        scores = {k.removeprefix(corpus).replace("_", " "): v for k, v in result.items() if k.startswith(corpus)}
        lines.append(corpus.rstrip("/") + ": " + ", ".join(f"{name} {value:.3f}" for name, value in scores.items()))
    return "\n".join(lines)
