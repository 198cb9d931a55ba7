"""`albert pretrain`: from a data directory and a recipe to a run of checkpoints."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from albert_cli import config, console, machine, store
from albert_cli.data.batches import PairSettings
from albert_cli.data.cooccurrence import word_vectors
from albert_cli.data.shards import TokenCorpus, verify_data
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.model import costs, hub, params
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.starts import StartSettings, set_start, word_dimensions
from albert_cli.ranks import Group, is_main, process_group
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training import checkpoint, run
from albert_cli.training.batching import Batches, BatchSettings
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.device import choose_device, matmul_peak, place, resolve_auto, use_threads
from albert_cli.training.initial import InitialSettings, RunBefore, carry_over, read_parent
from albert_cli.training.lamb import Lamb
from albert_cli.training.loop import Loop, evaluate, measure
from albert_cli.training.objectives import LONG_SEGMENT, PretrainingJob
from albert_cli.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings, parse_duration
from albert_cli.training.watch import Watch

_MEASURED = 2.0  # seconds of a step that a dry run measures
_RESERVE = 0.03  # share of a time budget kept for a machine that slows down
_SAVING = (0.1, 2e8)  # seconds of a checkpoint, and bytes written, hashed and synced a second: a slow disk's
_CHECKPOINT_BYTES = 12  # a parameter: the weight and two moments in fp32


@dataclass(frozen=True)
class PretrainRecipe:
    """A pretraining recipe; its sections are documented by their own classes.

    `masked_bias` starts the vocabulary bias of the masked-word head at zero, as the paper does, or at the log
    unigram frequencies of the data, which saves a small model the first hundreds of steps. `start` says what else the
    first weights hold; without it they are drawn from `train.seed`. `initial` names a checkpoint whose weights the run
    starts from instead, so that `start` does not apply. `evaluation` names further data directories, made with the same
    vocabulary, whose scores stand beside those of the held-out text.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    data: PairSettings = field(default_factory=PairSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    batch: BatchSettings = field(default_factory=BatchSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    masked_bias: Literal["zero", "unigram"] = "zero"
    start: StartSettings = field(default_factory=StartSettings)
    evaluation: tuple[str, ...] = ()
    initial: InitialSettings | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "optimizer", self.optimizer.settled(self.train.batch_size))
        self.batch.check(self.train.batch_size, self.data.max_seq_length)
        if self.initial is not None:
            object.__setattr__(self, "start", StartSettings())
        self.start.check(self.model)

    @property
    def batches(self) -> Batches:
        """The examples of every step."""
        return Batches(self.train.batch_size, self.batch)


def resolve(recipe: str, overrides: Sequence[str], vocabulary: Vocabulary) -> PretrainRecipe:
    """The recipe with overrides, fitted to the vocabulary; raises `ConfigError` where they do not fit."""
    values = config.read_recipe(recipe)
    if "task" in values:
        raise ConfigError(f"{recipe} is a fine-tuning recipe, for {values['task']}", "albert finetune takes it")
    values = config.override(values, overrides)
    asked = values.setdefault("model", {}).setdefault("vocab_size", vocabulary.size)
    if asked != vocabulary.size:
        raise ConfigError(
            f"the recipe's model.vocab_size is {asked}, the data's vocabulary has {vocabulary.size} pieces",
            f"-s model.vocab_size={vocabulary.size}, or data made with another vocabulary",
        )
    resolved = config.validate(PretrainRecipe, values, recipe)
    resolved.schedule.check()
    longest, positions = resolved.data.max_seq_length, resolved.model.max_position_embeddings
    if longest > positions:
        raise ConfigError(
            f"data.max_seq_length is {longest}, but the model has only {positions} positions",
            f"-s data.max_seq_length={positions} or -s model.max_position_embeddings={longest}",
        )
    return resolved


def pretrain(
    recipe: str,
    data: Path,
    out: Path,
    overrides: Sequence[str] = (),
    *,
    resume: run.Resume = "auto",
    max_time: str | None = None,
    dry_run: bool = False,
    device: str = "auto",
) -> dict[str, Any]:
    """Pretrain and return what `--json` prints; see `albert pretrain --help`."""
    corpus, heldout = TokenCorpus.open(data, "train"), TokenCorpus.open(data, "heldout")
    if is_main():
        verify_data(data)
    vocabulary = Vocabulary.load(corpus.vocabulary_dir)
    resolved = resolve(recipe, overrides, vocabulary)
    budget = parse_duration(max_time, "--max-time") if max_time else None
    target = choose_device(device)
    with process_group(target.type) as group:
        parts = _Parts(resolved, corpus, heldout, vocabulary, data, target, group)
        if dry_run:
            return parts.plan(out, budget)
        with run.reported(out) as status:
            return parts.train(out, status, resume, budget)


def show_config(recipe: str, data: Path, overrides: Sequence[str]) -> tuple[dict[str, Any], str]:
    """The resolved recipe, as values and as TOML."""
    vocabulary = Vocabulary.load(TokenCorpus.open(data).vocabulary_dir)
    resolved = resolve(recipe, overrides, vocabulary)
    return config.as_dict(resolved), config.dump_toml(resolved).rstrip()


@dataclass
class _Parts:
    """Everything a run is made of, once the inputs are known to fit together."""

    recipe: PretrainRecipe
    corpus: TokenCorpus
    heldout: TokenCorpus
    vocabulary: Vocabulary
    data: Path
    device: torch.device
    group: Group
    begun: float = field(default_factory=time.monotonic)

    def new_job(self) -> PretrainingJob:
        """A job with freshly initialised weights: the same for every process that starts from this seed."""
        recipe = self.recipe
        torch.manual_seed(recipe.train.seed)
        model = PretrainingModel(recipe.model)
        if recipe.masked_bias == "unigram":
            counts = self.corpus.unigram_counts() + 1
            with torch.no_grad():
                model.masked.bias.copy_(torch.from_numpy(np.log(counts / counts.sum())))
        place(model, recipe.train, self.device)
        text = config.dump_toml(recipe)
        entropy = store.read_json(self.data / "data.json")["unigram_entropy_nats"]
        return PretrainingJob(
            model,
            self.corpus,
            self.heldout,
            self.vocabulary,
            recipe.data,
            recipe.train,
            self.device,
            text,
            entropy,
            self._others,
            recipe.batch,
        )

    @cached_property
    def _others(self) -> dict[str, TokenCorpus]:
        """The corpora of `evaluation`, by the names of their directories; what they hold out, where they do."""
        found = {}
        for directory in map(Path, self.recipe.evaluation):
            corpus = TokenCorpus.open(directory, "heldout")
            found[directory.name] = corpus if corpus.tokens else TokenCorpus.open(directory, "train")
            if Vocabulary.load(corpus.vocabulary_dir).fingerprint != self.vocabulary.fingerprint:
                raise ConfigError(
                    f"{directory}: was made with another vocabulary than the data to train on",
                    f"albert data … --vocab {self.corpus.vocabulary_dir} --out {directory}",
                )
        if len(found) < len(self.recipe.evaluation):
            raise ConfigError(
                f"evaluation names two directories alike: {', '.join(self.recipe.evaluation)}",
                "scores go by the directory's last name, so rename one",
            )
        return found

    def train(self, out: Path, status: run.Status, resume: run.Resume, budget: float | None) -> dict[str, Any]:
        """Run to the last step, or go on with what `out` holds."""
        self._settle(out, resume, budget)
        with use_threads(self.recipe.train.threads):
            return self._train(out, status)

    def _train(self, out: Path, status: run.Status) -> dict[str, Any]:
        job = self.new_job()
        optimizer = run.make_optimizer(job.model, self.recipe.optimizer)
        if self.group.rank == 0:
            store.write_text(out / "recipe.toml", job.recipe)
        parents = {"data": store.fingerprint(self.data)}
        if self.recipe.initial is not None:
            parents["initial"] = str(self.recipe.initial.fingerprint)
        state = run.resume_state(
            out, optimizer, lambda d: hub.load_into(job.model, hub.read(d), "all"), self.group, parents,
            begin=lambda: self._begin(job, optimizer, out),
        )  # fmt: skip
        run.running(out, status, state.step, self.recipe.schedule.total_steps)
        job.last_metrics = _last_evaluation(out, state.step)
        loop = Loop(
            job, optimizer, self.recipe.optimizer, self.recipe.schedule, job.settings, out, job.recipe,
            parents, self.group, self.device, "pretrain", state, self._watch(),
        )  # fmt: skip
        loop.run()
        loop.save()
        return self._summary(out)

    def _watch(self) -> Watch:
        counts = self.corpus.unigram_counts()
        shares = counts[counts > 0] / counts.sum()
        return Watch(float(-(shares * np.log(shares)).sum()), self.recipe.schedule.warmup)

    @cached_property
    def _parent(self) -> hub.Checkpoint | None:
        """The checkpoint that the recipe starts from."""
        recipe = self.recipe
        return read_parent(recipe.initial, recipe.model, self.vocabulary) if recipe.initial else None

    @cached_property
    def _word_vectors(self) -> torch.Tensor | None:
        """The corpus's own, where `[start]` asks for them: up to a minute's work, for rank 0 alone."""
        recipe = self.recipe
        if recipe.start.words == "random":
            return None
        return word_vectors(self.corpus, word_dimensions(recipe.start, recipe.model), recipe.train.seed)

    def _begin(self, job: PretrainingJob, optimizer: Lamb, out: Path) -> TrainState:
        """Where a run stands at its first start: drawn weights, a parent's, or what `[start]` makes, which is kept."""
        model, start = job.model, self.recipe.start
        if self._run_before is not None and self._parent is not None:
            before = checkpoint.restore(self._run_before.directory, optimizer)
            carry_over(model, self._parent, f"with its moments, from step {before.step:,} on")
            return TrainState(before.step, before.seconds)
        if self._parent is not None:
            carry_over(model, self._parent)
        if start == StartSettings():
            return TrainState()
        if self.group.rank == 0:
            set_start(model.cpu(), start, self._word_vectors, self.recipe.train.seed)
            model.to(self.device)
        # Decompositions of matrices may differ in their last bits between the ranks' processors.
        self.group.share(model.parameters())
        if self.group.rank == 0:
            if (out / hub.START).exists():  # of a start that ended before its first step was saved
                store.remove_directory(out / hub.START)
            with store.commit_directory(
                out / hub.START, "checkpoint", {"data": store.fingerprint(self.data)}
            ) as staging:
                job.write_model(staging)
        return TrainState()

    @cached_property
    def _run_before(self) -> RunBefore | None:
        """The run that the recipe continues."""
        initial = self.recipe.initial
        if initial is None or initial.continues is None or self._parent is None:
            return None
        return RunBefore.read(self._parent.directory, config.defaults(PretrainRecipe))

    def _settle_initial(self, out: Path, old: Mapping[str, Any] | None) -> None:
        """Note which checkpoint the run starts from; once it has a step of its own, that is no longer looked at.

        A warm-up that was over stays over: the continued run has that of the run before.
        """
        initial, schedule = self.recipe.initial, self.recipe.schedule
        if initial is None:
            return
        step, warmup = None, -1
        if checkpoint.saved_steps(out):
            kept = (old or {}).get("initial", {})
            found = initial.fingerprint or kept.get("fingerprint")
            initial = dataclasses.replace(initial, changes=kept.get("changes"))
            if initial.continues is not None:
                warmup = old["schedule"].get("warmup_steps", -1) if old else -1
                step, warmup = map(int, self.group.broadcast_numbers([kept.get("step", 0), warmup]))
        else:
            assert self._parent is not None
            found = store.fingerprint(self._parent.directory)
            if self._run_before is not None:
                step, warmup = self._run_before.step, self._run_before.warmup
        if step is not None and 0 <= warmup <= step:
            schedule = dataclasses.replace(schedule, warmup_steps=warmup)
        initial = dataclasses.replace(initial, fingerprint=found, step=step)
        self.recipe = dataclasses.replace(self.recipe, initial=initial, schedule=schedule)

    @property
    def _first_step(self) -> int:
        """The number of steps that were done before this run."""
        return (self.recipe.initial.step or 0) if self.recipe.initial else 0

    def _name_changes(self) -> None:
        """Put into the recipe, and say, what a continued run changes.

        Raises `ConfigError` where nothing is left for it to do.
        """
        initial, before, total = self.recipe.initial, self._run_before, self.recipe.schedule.total_steps
        if initial is None or before is None:
            return
        if total <= before.step:
            raise ConfigError(
                f"{before.directory}: is at step {before.step:,}, and schedule.total_steps is {total:,}",
                f"it counts the steps of the run before too: -s schedule.total_steps={2 * before.step}",
            )
        self.recipe.schedule.check()
        changes = before.changes(config.as_dict(self.recipe), store.fingerprint(self.data))
        self.recipe = dataclasses.replace(self.recipe, initial=dataclasses.replace(initial, changes=changes))
        console.note(f"goes on from {before.directory}, and changes: {'; '.join(changes) or 'nothing'}")

    def _settle(self, out: Path, resume: run.Resume, budget: float | None) -> None:
        """Fix what "auto" and a time mean, and refuse a directory, a recipe or a disk that does not fit."""
        old = run.saved_recipe(out, resume) if self.group.rank == 0 else None
        self._settle_initial(out, old)
        self._resolve_auto(old)
        if not self._fits(self._micro):
            needed = costs.size_in_words(self._memory(self._micro)["memory_bytes_estimated"])
            console.warn(
                f"a micro-batch of {self._micro} sequences needs {needed} of memory by arithmetic, and "
                f"{costs.size_in_words(self._free_memory())} are free: lower train.micro_batch_size, which changes no "
                "result, or set train.checkpoint_activations=true"
            )
        if budget is not None:
            # The first start froze the schedule; asking for a time again means that run.
            frozen = [0.0] * 4 if old is None else _schedule(old)
            total, warmup, growth, decay = map(int, self.group.broadcast_numbers(frozen))
            if total:
                self._set_schedule(total, warmup, growth, decay)
                console.note(f"{out}: keeps the {total:,} steps of its first start")
            else:
                self._freeze(budget)
        if not checkpoint.saved_steps(out):
            self._name_changes()
        if old is not None:
            run.check_same(out, old, self.recipe)
        if self.group.rank == 0:
            _check_disk(out, params.count(self.recipe.model).total, self.recipe.train.keep)

    def _resolve_auto(self, old: Mapping[str, Any] | None) -> None:
        """Put what "auto" stands for into the recipe: what it stood for at the first start, or what rank 0 finds."""
        recipe = self.recipe
        train = resolve_auto(
            run.keep_auto(recipe.train, old), recipe.model, self.device,
            sequences=self._micro, length=recipe.data.max_seq_length,
        )  # fmt: skip
        in_bf16, compiled, threads = self.group.broadcast_numbers(
            [train.precision == "bf16", train.compile == "on", 0 if train.threads == "auto" else train.threads]
        )
        train = dataclasses.replace(
            train,
            precision="bf16" if in_bf16 else "fp32",
            compile="on" if compiled else "off",
            threads=int(threads) or "auto",
        )
        self.recipe = dataclasses.replace(recipe, train=train)

    def _set_schedule(self, total: int, warmup: int, growth: int, decay: int) -> None:
        """Put numbers of steps, as `_schedule` gives them, into the recipe."""
        recipe, (warmup_steps, decay_steps) = self.recipe, (None if n < 0 else n for n in (warmup, decay))
        schedule = dataclasses.replace(
            recipe.schedule, total_steps=total, warmup_steps=warmup_steps, decay_steps=decay_steps
        )
        batch = dataclasses.replace(recipe.batch, warmup_steps=growth)
        self.recipe = dataclasses.replace(recipe, schedule=schedule, batch=batch)

    def _freeze(self, budget: float) -> None:
        """Turn a time budget into a number of steps: measure first, then the schedule can reach zero.

        The budget is that of the whole run from now on: steps, evaluations, checkpoints, and this measurement.
        """
        recipe, train = self.recipe, self.recipe.train
        if self.group.rank == 0:
            _ = self._word_vectors  # they are of the budget too
        job = self._full_sized(self.new_job())
        with use_threads(train.threads):
            step = self._measured(job, steps=8, seconds=min(10, budget / 20))
            evaluation = self._evaluation_seconds(job)
        save = _SAVING[0] + _CHECKPOINT_BYTES * params.count(recipe.model).total / _SAVING[1]
        every, interval = train.save_interval()
        # The shape of the schedule stays: a batch that grows keeps its mean share of the full one.
        total, done = recipe.schedule.total_steps, self._first_step
        if total > done:
            sequences = recipe.batches.first(total) - recipe.batches.first(done)
            step *= sequences / ((total - done) * train.batch_size)
        saves = save / every if every else save * step / interval if interval else 0.0
        evaluations = evaluation / train.eval_every if train.eval_every else 0.0
        left = (1 - _RESERVE) * (budget - (time.monotonic() - self.begun)) - evaluation - save
        steps = max(1, int(self.group.broadcast(left / (step + evaluations + saves))))
        _, warmup, growth, decay = (int(n) for n in _schedule(config.as_dict(recipe)))
        share = (done + steps) / total
        # What a run that is continued has behind it keeps its length.
        rising, growth = (n if n < 0 or done else round(n * share) for n in (warmup, growth))
        self._set_schedule(done + steps, rising, growth, decay if decay < 0 else round(decay * share))
        scaled = warmup > 0 and not done
        said = f", {rising:,} of them warm-up, as the recipe has {warmup:,} of {total:,}" if scaled else ""
        console.note(
            f"{1000 * step:.1f} ms a step, {evaluation:.1f} s an evaluation: {steps:,} steps fit into "
            f"{console.duration(budget)}{said}"
        )

    def _measured(self, job: PretrainingJob, *, steps: int, seconds: float) -> float:
        """Seconds that a step of the job takes."""
        optimizer = self.recipe.optimizer
        return measure(job, job.settings, optimizer, self.group, self.device, steps=steps, seconds=seconds)

    def _evaluation_seconds(self, job: PretrainingJob) -> float:
        """Seconds that an evaluation takes, by one on few sequences."""
        settings = job.settings
        few = min(settings.eval_sequences, 2 * self._micro * self.group.world_size)
        part = dataclasses.replace(job, settings=dataclasses.replace(settings, eval_sequences=few))
        started = 0.0
        for _ in range(2):  # the first warms up
            started = time.monotonic()
            evaluate(part, settings, self.group, self.device)
        return self.group.broadcast((time.monotonic() - started) * settings.eval_sequences / few)

    @property
    def _micro(self) -> int:
        """Sequences of full length in a micro-batch."""
        return self.recipe.batch.sequences(self.recipe.train, self.recipe.data.max_seq_length)

    def _full_sized(self, job: PretrainingJob, **changes: Any) -> PretrainingJob:
        """The job with steps of its full batch from the start, to be measured; `changes` are to its `[train]`."""
        batching = dataclasses.replace(job.batching, warmup_steps=0)
        return dataclasses.replace(job, batching=batching, settings=dataclasses.replace(job.settings, **changes))

    def _summary(self, out: Path) -> dict[str, Any]:
        """What the finished run amounts to."""
        final = checkpoint.saved_steps(out)[-1]
        records = store.read_journal(out / "metrics.jsonl")
        metrics = _last_evaluation(out, self.recipe.schedule.total_steps)
        if "mlm_loss" in metrics:
            metrics["below_unigram_entropy"] = round(metrics["unigram_entropy"] - metrics["mlm_loss"], 4)
        state = store.read_json(final / "state.json")
        return {
            "checkpoint": str(final),
            "steps": state["step"],
            "seconds": round(state["seconds"], 1),
            "tokens_per_second": next((r["tokens_per_second"] for r in reversed(records) if "loss" in r), None),
            **metrics,
            "model_sha256": store.sha256_file(final / hub.WEIGHTS),
        }

    def plan(self, out: Path, budget: float | None) -> dict[str, Any]:
        """What a run would do: shapes, tokens, memory and disk by arithmetic, and the time by measuring some of it.

        The arithmetic is printed before anything is measured, unless as JSON.
        """
        self._settle(out, "auto", budget)
        recipe, train = self.recipe, self.recipe.train
        counts, length = params.count(recipe.model), recipe.data.max_seq_length
        sequences = recipe.batches.first(recipe.schedule.total_steps) - recipe.batches.first(self._first_step)
        growth = {"sequences_in_first_step": recipe.batches.size(0), "batch_warmup_steps": recipe.batch.warmup_steps}
        found = {
            "parameters": counts.total,
            "steps": recipe.schedule.total_steps,
            **({"steps_done_before": self._first_step} if self._first_step else {}),
            "warmup_steps": recipe.schedule.warmup,
            "sequences_per_step": train.batch_size,
            **(growth if recipe.batch.warmup_steps else {}),
            "sequences_per_micro_batch": self._micro,
            "tokens_per_step_at_most": train.batch_size * length,
            "corpus_tokens": self.corpus.tokens,
            "passes_over_corpus": round(sequences * length / max(self.corpus.tokens, 1), 2),
            **self._memory(self._micro),
            "memory_bytes_free": self._free_memory(),
            "checkpoint_bytes": _CHECKPOINT_BYTES * counts.total,
            "disk_bytes_needed": _CHECKPOINT_BYTES * counts.total * (train.keep + 1),
            "disk_bytes_free": store.free_bytes(out),
            "device": str(self.device),
            "precision": train.precision,
            "compiled": train.compile == "on",
            "threads": train.threads,
            "processes": self.group.world_size,
        }
        console.emit_part(plan_text(found))
        return found | self._speed(sequences)

    def _speed(self, sequences: int) -> dict[str, Any]:
        """The time that so many sequences take, measured on as many as fit into memory and into some seconds."""
        train, length = self.recipe.train, self.recipe.data.max_seq_length
        with use_threads(train.threads):
            peak = matmul_peak(train.precision, self.device, seconds=0.1)
        sequence = length * costs.training_flops(self.recipe.model, length) / peak
        few = min(self._micro, max(1, int(_MEASURED / sequence)))
        while few and not self._fits(few):
            few //= 2
        if few == 0:
            return {"estimated_seconds": None, "measured_on_sequences": 0}
        job = self._full_sized(self.new_job(), batch_size=few * self.group.world_size, micro_batch_size=few)
        with use_threads(train.threads):
            seconds = self._measured(job, steps=2, seconds=0.5) * sequences / job.settings.batch_size
        return {"estimated_seconds": round(seconds, 1), "measured_on_sequences": few}

    def _free_memory(self) -> int:
        """Bytes that a process may still take on the device; 0 where unknown."""
        if self.device.type == "cuda":
            return int(torch.cuda.mem_get_info(self.device)[0])
        return machine.memory().get("available", 0)

    def _fits(self, sequences: int) -> bool:
        """Whether a micro-batch of so many sequences fits into memory, by arithmetic; True where that is unknown."""
        free = self._free_memory()
        return not free or self._memory(sequences)["memory_bytes_estimated"] <= free

    def _memory(self, sequences: int) -> dict[str, int]:
        """Bytes that a process needs by `costs`: for its state, and for a micro-batch of so many full sequences."""
        train, model, length = self.recipe.train, self.recipe.model, self.recipe.data.max_seq_length
        setup = costs.Setup(
            "cuda" if self.device.type == "cuda" else "cpu", "bf16" if train.precision == "bf16" else "fp32"
        )
        state = costs.state_bytes(model, setup)
        kept = sequences * costs.activation_bytes(model, length, setup, checkpointed=train.checkpoint_activations)
        working = sequences * costs.working_bytes(model, length, setup)
        return {
            "weights_gradients_moments_bytes": state.weights + state.gradients + state.moments,
            "activations_bytes": kept,
            "memory_bytes_estimated": state.total + max(kept + working, state.update),
        }


def _schedule(recipe: Mapping[str, Any]) -> list[float]:
    """All steps of a recipe, those of the rate's warm-up (-1: a share), of the batch's, of the decay (-1: all)."""
    schedule, growth = recipe["schedule"], recipe.get("batch", {}).get("warmup_steps", 0)
    return [schedule["total_steps"], schedule.get("warmup_steps", -1), growth, schedule.get("decay_steps", -1)]


def _check_disk(out: Path, parameters: int, keep: int) -> None:
    """Refuse to start where not even the checkpoints that are kept would fit, one more while it is written."""
    have = len(checkpoint.saved_steps(out))
    needed, free = _CHECKPOINT_BYTES * parameters * max(1, keep + 1 - have), store.free_bytes(out)
    if free < needed:
        raise CheckpointError(
            f"{out}: {needed / 1e6:.1f} MB are needed for {keep} checkpoints and {free / 1e6:.1f} MB are free",
            "free some space, or keep fewer with -s train.keep=1",
        )


def _last_evaluation(out: Path, step: int) -> dict[str, float]:
    """The newest evaluation that the journal holds at or before a step."""
    path = out / "metrics.jsonl"
    records = store.read_journal(path) if path.is_file() else []
    return next((r["eval"] for r in reversed(records) if "eval" in r and r["step"] <= step), {})


def summary_text(result: Mapping[str, Any]) -> str:
    """The result of a run as a person reads it."""
    lines = [f"{result['checkpoint']}: {result['steps']:,} steps in {console.duration(result['seconds'])}"]
    if "mlm_loss" in result:
        below = result["below_unigram_entropy"]
        side = "below" if below >= 0 else "above"
        lines.append(
            f"held-out masked-word loss {result['mlm_loss']:.3f} nats, {abs(below):.3f} {side} the unigram entropy of "
            f"the same text ({result['unigram_entropy']:.3f}); accuracy {result['mlm_accuracy']:.1%}"
        )
    if "order_accuracy" in result:
        long = result.get("order_accuracy_long")
        beside = f", {long:.1%} where both segments have {LONG_SEGMENT} pieces" if long is not None else ""
        lines.append(f"held-out sentence-order accuracy {result['order_accuracy']:.1%}{beside}")
    for corpus in (key.removesuffix("mlm_loss") for key in result if key.endswith("/mlm_loss")):
        scores = {k.removeprefix(corpus).replace("_", " "): v for k, v in result.items() if k.startswith(corpus)}
        lines.append(corpus.rstrip("/") + ": " + ", ".join(f"{name} {value:.3f}" for name, value in scores.items()))
    return "\n".join(lines)


def speed_text(plan: Mapping[str, Any]) -> str:
    """How long a dry run's plan takes, and by what that is known."""
    few, micro = plan["measured_on_sequences"], plan["sequences_per_micro_batch"]
    if few == 0:
        return "its time was not measured: not even a single sequence fits into the memory"
    part = f"{few} of the micro-batch's {micro} sequences, and scaled" if few < micro else "a micro-batch"
    return f"takes about {console.duration(plan['estimated_seconds'])}, measured on {part}"


def plan_text(plan: Mapping[str, Any]) -> str:
    """The arithmetic of a dry run's plan as a table."""

    def shown(key: str, value: object) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        if "bytes" in key:
            return f"{float(str(value)) / 1e6:,.1f} MB"
        return f"{value:,}" if isinstance(value, int) else str(value)

    return console.table(
        ("plan", ""), [(k.replace("_bytes", "").replace("_", " "), shown(k, v)) for k, v in plan.items()]
    )
