"""`albert bench pretrain`: time a recipe's pretraining step on this machine, and compute how long the whole run takes.

First, the training step is timed on one micro-batch, with the optimizer's update, in alternation with `transformers` on
the same examples. Then the parts of this step are timed. The time of the recipe's step is the sum of its parts: all
micro-batches of the recipe's batch, and one update.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albert_cli import store
from albert_cli.bench import harness, memory, peer
from albert_cli.bench.harness import TimedCall, Workload
from albert_cli.bench.inputs import load_text, make_random_text
from albert_cli.bench.pretrain_result import SECONDS_PER_DAY, MicroBatchFacts, PretrainBenchResult, RecipeStep
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import ConfigError
from albert_cli.machine import synchronize
from albert_cli.model.heads import PretrainingModel
from albert_cli.ranks import RankGroup, process_group
from albert_cli.tasks.token_features import IGNORED
from albert_cli.training import capacity
from albert_cli.training.device import (
    autocast,
    choose_device,
    deterministic_kernels,
    prepare_model,
    resolve_auto,
    use_threads,
)
from albert_cli.training.first_weights import ParentRun
from albert_cli.training.idle_ranks import parallel_speedup
from albert_cli.training.job import MicroBatch, split_micro_batches
from albert_cli.training.objectives import PretrainingCorpora, PretrainingJob, SampledBatch
from albert_cli.training.optimizers import clip_gradients, make_optimizer, update_weights
from albert_cli.training.pretrain_recipe import BatchSettings, PretrainRecipe, load_pretrain_recipe
from albert_cli.training.reduction import reduce_gradients
from albert_cli.training.resolve import RunEnvironment, with_auto_values, with_warm_start
from albert_cli.training.warm_start import find_parent

PARTS: Final = ("data", "forward", "backward", "optimizer", "communication")
_CPU_TOKENS: Final = 1024  # default limit of a micro-batch on a CPU, where the recipe's micro-batch would take minutes


@dataclass(frozen=True)
class PretrainBenchOptions:
    """Options of the benchmark: the text, the overrides, the micro-batch, the rounds and the peer."""

    data: Path | None = None  # without a data directory: random ids
    overrides: tuple[str, ...] = ()
    # In a micro-batch; 0 means as many as in training, with two exceptions. With `against`, the "auto" of
    # `batch.micro_tokens` means `train.micro_batch_size`. On a CPU, a micro-batch has at most `_CPU_TOKENS` tokens,
    # or one sequence.
    sequences: int = 0
    rounds: int = 5
    against: str | None = None  # "transformers", or None for albert alone
    compiled: bool = True  # with `against`, also time compiled models
    device: str = "auto"


def run_pretrain_bench(name: str, options: PretrainBenchOptions) -> PretrainBenchResult:
    """Time a step of the recipe `name`; raise `ConfigError` for a recipe, a device or a peer that cannot be used."""
    device = choose_device(options.device)
    with process_group(device.type) as group:
        if options.against and group.world_size > 1:
            raise ConfigError("--against compares single processes", "leave out --nproc")
        bench = PretrainBench(name, options, device, group)
        with bench.as_in_training():
            return bench.run()


def prepare_recipe(name: str, options: PretrainBenchOptions) -> tuple[PretrainRecipe, PretrainingCorpora, str]:
    """Return the recipe with overrides and the text's vocabulary size, the text, and a phrase that names its source.

    Without a data directory, the text is random and has the recipe's vocabulary size.
    """
    if options.data is None:
        recipe = load_pretrain_recipe(name, options.overrides, vocab_size=None)
        text, source = make_random_text(recipe.model.vocab_size)
    else:
        text, source = load_text(options.data)
        recipe = load_pretrain_recipe(name, options.overrides, text.vocabulary.size)
    return recipe, text, source


def resolve_for_bench(
    recipe: PretrainRecipe, options: PretrainBenchOptions, device: torch.device, group: RankGroup
) -> PretrainRecipe:
    """Fill in the parent's step if the run continues another run, and on a GPU the values that are "auto".

    The first start of a run resolves these values in the same way. With `sequences` or `against` every "auto" remains.
    With `against`, a micro-batch then has `train.micro_batch_size` sequences, because `transformers` needs more memory
    than albert. Raises `ConfigError` for a recipe with a teacher, and `CheckpointError` if the continued run does not
    exist.
    """
    if recipe.distill is not None:
        raise ConfigError(
            "distill: every step of the run computes the teacher, but the benchmark cannot",
            "use `albert pretrain … --dry-run`, which estimates the time of a run with its teacher",
        )
    environment = RunEnvironment(device, group, data_fingerprint="")  # nothing below reads the data's fingerprint
    warm_start = recipe.warm_start
    if warm_start is not None and warm_start.continues is not None and warm_start.step is None:
        parent = find_parent(warm_start)
        environment = replace(
            environment, parent_fingerprint=store.fingerprint(parent), parent_run=ParentRun.load(parent)
        )
        recipe = with_warm_start(recipe, environment, None)
    if device.type == "cuda" and not options.sequences and not options.against:
        recipe = with_auto_values(recipe, environment, saved=None)
    return recipe


class PretrainBench:
    """A recipe's model with its optimizer on the device, and the examples of every round."""

    def __init__(self, name: str, options: PretrainBenchOptions, device: torch.device, group: RankGroup) -> None:
        self.name = name
        self.options = options
        self.device = device
        self.group = group
        recipe, text, self.source = prepare_recipe(name, options)
        self.recipe = resolve_for_bench(recipe, options, device, group)
        length = self.recipe.data.max_seq_length
        batch_size = self.recipe.train.batch_size
        if options.sequences > batch_size:
            message = f"--sequences {options.sequences:,}: the recipe's batch has {batch_size:,}"
            raise ConfigError(message, f"use --sequences {batch_size} or less, or a larger -s train.batch_size")
        self.sequences = options.sequences or self.recipe.sequences_per_micro_batch
        if device.type == "cpu" and not options.sequences:
            self.sequences = min(self.sequences, max(1, _CPU_TOKENS // length))
        # The batch of a timed step is a single micro-batch per process.
        settings = replace(
            self.recipe.train, batch_size=self.sequences * group.world_size, micro_batch_size=self.sequences
        )
        self.train = resolve_auto(settings, self.recipe.model, device, sequences=self.sequences, length=length)
        need = capacity.estimate_memory(self.recipe.model, self.train, length, self.sequences, device)
        capacity.warn_training_memory(need, self.sequences, device, "--sequences")
        torch.manual_seed(0)
        self.model = PretrainingModel(self.recipe.model)
        prepare_model(self.model, self.train, device)
        self.job = PretrainingJob(self.model, replace(self.recipe, train=self.train, batch=BatchSettings()), text)
        self.optimizer = make_optimizer(self.model, self.recipe.optimizer)
        steps = range(options.rounds + harness.WARM_UP)
        self.batches = [self.job.sample_step(step, group)[0] for step in steps]  # a step's only micro-batch
        # The same batches, as NumPy arrays.
        self.packed: list[PackedBatch] = [batch.data.packed for batch in self.batches]

    @contextmanager
    def as_in_training(self) -> Iterator[None]:
        """Use the recipe's threads and kernels while the block runs."""
        with deterministic_kernels(self.train.deterministic), use_threads(self.train.threads):
            yield

    def run(self) -> PretrainBenchResult:
        """Time all variants and the parts of a step; return the measurements."""
        timed = self.batches[harness.WARM_UP :]
        variants, losses = self._make_variants()
        comparison = harness.compare_variants(
            variants,
            [Workload(batch.tokens, batch.flops) for batch in timed],
            self.train.precision,
            self.device,
            "bench",
            losses=losses,
            ranks=self.group.world_size,
        )
        parts = self._time_parts()
        lengths = np.concatenate([np.diff(batch.offsets) for batch in self.packed[harness.WARM_UP :]])
        micro_batch = MicroBatchFacts(
            sequences=self.sequences,
            tokens=comparison.tokens,
            filled_fraction=round(float(lengths.mean()) / self.recipe.data.max_seq_length, 4),
            model_flops=round(median(batch.flops for batch in timed)),
        )
        return PretrainBenchResult(
            recipe=self.name,
            text=self.source,
            conditions=harness.current_conditions(self.device, self.train.precision),
            processes=self.group.world_size,
            compiled=self.train.compile == "on",
            matmul_peak_flops=comparison.matmul_peak_flops,
            micro_batch=micro_batch,
            variants=comparison.variants,
            parts_ms={name: round(1e3 * seconds, 3) for name, seconds in parts.items()},
            recipe_step=self._compute_recipe_step(parts, micro_batch, comparison.matmul_peak_flops),
            memory=memory.measure_memory(self.recipe.model, self.packed[0], self.train, self.device),
        )

    # ------------------------------------------------------------ the variants

    def _make_variants(self) -> tuple[dict[str, TimedCall], dict[str, float]]:
        """Return each variant's step, and each variant's loss on the first batch without dropout, by name."""
        precision = self.train.precision
        first = self.packed[0]
        losses = {"albert": harness.loss_without_dropout(self.model, self._albert_loss, self.batches[0], precision)}
        variants = {"albert": self.make_step()}
        if self.options.against == "transformers":
            hf_model = peer.make_transformers_model(self.model)
            peer_loss_of = partial(self._peer_loss, hf_model)
            losses["transformers"] = harness.loss_without_dropout(hf_model, peer_loss_of, first, precision)
            if self.options.compiled and self.train.compile == "off":
                variants["albert, compiled"] = harness.with_compiled_block(self.model, self.make_step())
            variants["transformers"] = harness.make_plain_training_step(hf_model, peer_loss_of, self.packed, precision)
            if self.options.compiled:
                loss_of = partial(self._peer_loss, torch.compile(hf_model))
                step = harness.make_plain_training_step(hf_model, loss_of, self.packed, precision)
                variants["transformers, compiled"] = harness.with_compile_hint(step)
        # A compiled variant has the same weights as the uncompiled one, and therefore the same loss.
        return variants, {name: losses[name.removesuffix(", compiled")] for name in variants}

    def make_step(self) -> TimedCall:
        """Return a call that takes a training step on the next micro-batch."""
        return harness.make_training_step(
            self.model,
            self._albert_loss,
            self.batches,
            self.optimizer,
            self.recipe.optimizer.clip_norm,
            self.train.precision,
            self.group,
        )

    def _albert_loss(self, micro_batch: MicroBatch[SampledBatch]) -> Tensor:
        """Return the sum of the mean MLM loss and the mean sentence loss, if the recipe has one, as in training."""
        sums = self.job.loss_sums(micro_batch.data)
        return torch.stack([sums[name] / max(1, micro_batch.counts[name]) for name in self.job.loss_names]).sum()

    def _peer_loss(self, hf_model: peer.HfForward, batch: PackedBatch) -> Tensor:
        """Return the loss of `transformers`: MLM and sentence loss, or MLM alone if the recipe has no sentence loss."""
        inputs = peer.pretraining_inputs(self.model, batch, self.device)
        if self.recipe.data.sentence_loss != "none":
            return peer.compute_loss(hf_model, inputs)
        without_labels = {key: value for key, value in inputs.items() if "label" not in key}
        logits = hf_model(**without_labels).prediction_logits
        return F.cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten(), ignore_index=IGNORED)

    # ------------------------------------------------------------ the parts

    def _time_parts(self) -> dict[str, float]:
        """Return the median seconds of each part of a step, with a wait for the device before and after each part."""
        seconds: dict[str, list[float]] = {name: [] for name in PARTS}

        @contextmanager
        def timed(part: str) -> Iterator[None]:
            synchronize(self.device)
            begin = time.perf_counter()
            yield
            synchronize(self.device)
            seconds[part].append(time.perf_counter() - begin)

        for number, batch in enumerate(self.batches):
            with timed("data"):
                self.job.sample_step(number, self.group)
            with timed("forward"), autocast(self.train.precision, self.device):
                loss = self._albert_loss(batch)
            with timed("backward"):
                torch.autograd.backward(loss)
            with timed("communication"):
                reduce_gradients(self.model, self.group)  # does nothing in a single process
            with timed("optimizer"):
                clip_gradients(self.model, self.recipe.optimizer.clip_norm)
                update_weights(self.optimizer, 0.0)
        return {name: median(timings[harness.WARM_UP :]) for name, timings in seconds.items()}

    def _compute_recipe_step(self, parts: Mapping[str, float], micro: MicroBatchFacts, peak: float) -> RecipeStep:
        """Compute the recipe's step and run from the seconds of the parts and the matmul peak in FLOP/s."""
        recipe = self.recipe
        batch_size = recipe.train.batch_size
        ranks = self.group.world_size
        # The first rank has the most sequences. The last micro-batch may be smaller than the timed one.
        first_rank = replace(self.group, rank=0)
        sizes = [stop - start for _, start, stop in split_micro_batches(batch_size, self.sequences, first_rank)]
        # Training samples the next micro-batch during the computation, so the slower of the two counts.
        computing = sum(sizes) / self.sequences * max(parts["forward"] + parts["backward"], parts["data"])
        seconds = computing + parts["communication"] + parts["optimizer"]
        # A batch warmup makes the first batches smaller, but each step has one update.
        steps = recipe.schedule.total_steps - recipe.first_step
        updates = steps * (parts["communication"] + parts["optimizer"])
        days = (computing * recipe.total_sequences / batch_size + updates) / SECONDS_PER_DAY
        # Idle ranks do not count: the speedup is the number of devices that are busy on average.
        device_days = days * parallel_speedup(batch_size, self.sequences, ranks)
        flops_per_rank = micro.model_flops / self.sequences * batch_size / ranks
        return RecipeStep(
            sequences=batch_size,
            micro_batches_per_process=len(sizes),
            seconds=round(seconds, 7),
            tokens_per_second=round(micro.tokens / self.sequences * batch_size / seconds),
            mfu=round(flops_per_rank / seconds / peak, 4),
            optimizer_fraction=round(parts["optimizer"] / seconds, 5),
            communication_fraction=round(parts["communication"] / seconds, 5),
            steps=steps,
            days=float(f"{days:.6g}"),
            devices_for_a_week=math.ceil(device_days / 7),
            devices_for_a_day=math.ceil(device_days),
        )
