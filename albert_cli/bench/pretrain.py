"""`albert bench pretrain`: what a recipe's step costs on this machine, where the time goes, how long it would take.

A micro-batch is timed as training computes it, update included, and `transformers` beside it on the same examples,
alternating. From its parts the recipe's own step is put together: as many micro-batches as its batch has, one update.
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
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albert_cli import config as recipes
from albert_cli import console
from albert_cli.bench import harness, kernels, memory, peer
from albert_cli.bench.harness import Step
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import ConfigError
from albert_cli.machine import synchronize
from albert_cli.model.heads import PretrainingModel
from albert_cli.ranks import RankGroup, process_group
from albert_cli.training import capacity
from albert_cli.training.device import (
    autocast,
    choose_device,
    deterministic_kernels,
    prepare_model,
    resolve_auto,
    use_threads,
)
from albert_cli.training.loop import MicroBatch
from albert_cli.training.objectives import PretrainingCorpora, PretrainingJob
from albert_cli.training.optimizers import clip_gradients, make_optimizer, update_weights
from albert_cli.training.pretrain_recipe import BatchSettings, PretrainRecipe, load_pretrain_recipe
from albert_cli.training.reduction import reduce_gradients

PARTS = ("data", "forward", "backward", "optimizer", "communication")
_CPU_TOKENS = 1024  # of a micro-batch, where the recipe's own would take minutes


@dataclass(frozen=True)
class PretrainBenchOptions:
    """How to measure: sequences of a micro-batch (0: chosen by device), rounds, and against what."""

    data: Path | None = None
    overrides: tuple[str, ...] = ()
    sequences: int = 0
    rounds: int = 5
    against: str | None = None
    compiled: bool = True
    device: str = "auto"


def run(name: str, options: PretrainBenchOptions) -> dict[str, Any]:
    """Measure; raises `ConfigError` for a recipe, a device or a peer that cannot be used."""
    device = choose_device(options.device)
    with process_group(device.type) as group:
        if options.against and group.world_size > 1:
            raise ConfigError("--against compares one process with one", "leave out --nproc")
        bench = PretrainBench(name, options, device, group)
        with deterministic_kernels(bench.train.deterministic), use_threads(bench.train.threads):
            return bench.run()


def profile_step(name: str, options: PretrainBenchOptions) -> dict[str, Any]:
    """What a micro-batch's step asks of the device: see `kernels.profile`."""
    device = choose_device(options.device)
    bench = PretrainBench(name, options, device, RankGroup())
    with deterministic_kernels(bench.train.deterministic), use_threads(bench.train.threads):
        step = bench.own()
        for _ in range(harness.WARM_UP + 1):
            step()
        return kernels.profile(step, device)


def prepare(name: str, options: PretrainBenchOptions) -> tuple[PretrainRecipe, PretrainingCorpora, str]:
    """The recipe as it is measured, its text, and a phrase that says where that is from."""
    asked = recipes.apply_overrides(recipes.read_recipe(name), options.overrides).get("model", {}).get("vocab_size")
    text, source = harness.load_text(options.data, asked)
    return load_pretrain_recipe(name, options.overrides, text.vocabulary.size), text, source


class PretrainBench:
    """A recipe's model with its optimizer on the device, and the examples of every round."""

    def __init__(self, name: str, options: PretrainBenchOptions, device: torch.device, group: RankGroup) -> None:
        self.name, self.options, self.device, self.group = name, options, device, group
        self.recipe, text, self.source = prepare(name, options)
        length, most = self.recipe.data.max_seq_length, self.recipe.micro_batch
        few = min(most, max(1, _CPU_TOKENS // length)) if device.type == "cpu" else most
        self.sequences = options.sequences or few
        self.train = resolve_auto(
            replace(self.recipe.train, batch_size=self.sequences * group.world_size, micro_batch_size=self.sequences),
            self.recipe.model,
            device,
            sequences=self.sequences,
            length=length,
        )
        need = capacity.estimate_memory(self.recipe.model, self.train, length, self.sequences, device)
        capacity.warn_training_memory(need, self.sequences, device)
        torch.manual_seed(0)
        self.model = PretrainingModel(self.recipe.model)
        prepare_model(self.model, self.train, device)
        measured = replace(self.recipe, train=self.train, batch=BatchSettings())
        self.job = PretrainingJob(self.model, measured, text)
        self.optimizer = make_optimizer(self.model, self.recipe.optimizer)
        steps = range(options.rounds + harness.WARM_UP)
        self.batches = [self.job.draw(step, group)[0] for step in steps]  # of one micro-batch
        self.packed: list[PackedBatch] = [batch.data.drawn for batch in self.batches]

    def run(self) -> dict[str, Any]:
        """Time all variants and the parts of a step; return the measurements."""
        own = self.batches[harness.WARM_UP :]
        variants, losses = self._variants()
        compared = harness.compare_variants(
            variants, [(batch.tokens, batch.flops) for batch in own], self.train.precision, self.device, "bench",
            losses=losses, ranks=self.group.world_size,
        )  # fmt: skip
        parts = self._parts()
        lengths = np.concatenate([np.diff(batch.offsets) for batch in self.packed[harness.WARM_UP :]])
        micro_batch = {
            "sequences": self.sequences,
            "tokens": compared["tokens"],
            "share_filled": round(float(lengths.mean()) / self.recipe.data.max_seq_length, 4),
            "model_flops": round(median(batch.flops for batch in own)),
        }
        return {
            "recipe": self.name,
            "text": self.source,
            **harness.conditions(self.device, self.train.precision),
            "processes": self.group.world_size,
            "compiled": self.train.compile == "on",
            "matmul_peak_flops": compared["matmul_peak_flops"],
            "micro_batch": micro_batch,
            "variants": compared["variants"],
            "parts_ms": {name: round(1e3 * seconds, 3) for name, seconds in parts.items()},
            "recipe_step": self._recipe_step(parts, micro_batch, compared["matmul_peak_flops"]),
            "memory": memory.measure(self.recipe.model, self.packed[0], self.train, self.device),
        }

    # ------------------------------------------------------------ everyone's step

    def _variants(self) -> tuple[dict[str, Step], dict[str, float]]:
        """The step of everyone who takes part, and each one's loss without dropout before anything is timed."""
        precision, first = self.train.precision, self.packed[0]
        losses = {"albert": harness.loss_without_dropout(self.model, self._loss, self.batches[0], precision)}
        variants = {"albert": self.own()}
        if self.options.against == "transformers":
            twin = peer.make_transformers_model(self.model)
            losses["transformers"] = harness.loss_without_dropout(
                twin, partial(self._peer_loss, twin), first, precision
            )
            if self.options.compiled and self.train.compile == "off":
                variants["albert, compiled"] = harness.with_compiled_block(self.model, self.own())
            called: dict[str, Any] = {"transformers": twin}
            if self.options.compiled:
                called["transformers, compiled"] = torch.compile(twin)
            for name, function in called.items():
                variants[name] = harness.make_plain_step(
                    twin, partial(self._peer_loss, function), self.packed, precision
                )
        return variants, {name: losses[name.removesuffix(", compiled")] for name in variants}

    def own(self) -> Step:
        """The step as training takes it, on one micro-batch after the other."""
        return harness.make_training_step(
            self.model, self._loss, self.batches, self.optimizer, self.recipe.optimizer.clip_norm,
            self.train.precision, self.group,
        )  # fmt: skip

    def _loss(self, part: MicroBatch) -> Tensor:
        sums = self.job.loss_sums(part.data)
        return torch.stack([sums[name] / max(1, part.counts[name]) for name in self.job.loss_names]).sum()

    def _peer_loss(self, called: Any, batch: PackedBatch) -> Tensor:
        given = peer.pretraining_inputs(self.model, batch, self.device)
        if self.recipe.data.sentence_loss == "none":
            shown = {key: value for key, value in given.items() if "label" not in key}
            logits = called(**shown).prediction_logits
            return F.cross_entropy(logits.flatten(0, 1), given["labels"].flatten(), ignore_index=-100)
        return peer.compute_loss(called, given)

    # ------------------------------------------------------------ its parts

    def _parts(self) -> dict[str, float]:
        """Median seconds of each part of a step, with a wait for the device between them."""
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
                self.job.draw(number, self.group)
            with timed("forward"), autocast(self.train.precision, self.device):
                loss = self._loss(batch)
            with timed("backward"):
                loss.backward()  # type: ignore[no-untyped-call]
            with timed("communication"):
                if self.group.world_size > 1:
                    reduce_gradients(self.model, self.group)
            with timed("optimizer"):
                clip_gradients(self.model, self.recipe.optimizer.clip_norm)
                update_weights(self.optimizer, 0.0)
        return {name: median(found[harness.WARM_UP :]) for name, found in seconds.items()}

    def _recipe_step(self, parts: Mapping[str, float], micro: Mapping[str, Any], peak: float) -> dict[str, Any]:
        """The recipe's own step and run, put together from the parts; drawing goes on beside the computation."""
        batch, ranks = self.recipe.train.batch_size, self.group.world_size
        times = math.ceil(batch / (self.sequences * ranks))  # micro-batches of the rank that has most
        computing = times * max(parts["forward"] + parts["backward"], parts["data"])
        seconds = computing + parts["communication"] + parts["optimizer"]
        days = seconds * self.recipe.schedule.total_steps / 86400
        return {
            "sequences": batch,
            "micro_batches_a_process": times,
            "seconds": round(seconds, 7),
            "tokens_per_second": round(micro["tokens"] / self.sequences * batch / seconds),
            "mfu": round(micro["model_flops"] / self.sequences * batch / ranks / seconds / peak, 4),
            "optimizer_share": round(parts["optimizer"] / seconds, 5),
            "communication_share": round(parts["communication"] / seconds, 5),
            "steps": self.recipe.schedule.total_steps,
            "days": round(days, 4),
            "devices_for_a_week": math.ceil(days * ranks / 7),
            "devices_for_a_day": math.ceil(days * ranks),
        }


# ---------------------------------------------------------------- shown


def text(result: Mapping[str, Any]) -> str:
    """The result of `run` as tables."""
    micro, parts = result["micro_batch"], result["parts_ms"]
    computing = sum(value for name, value in parts.items() if name != "data")
    labels = {"data": "data, drawn beside the computation"}
    rows = [(labels.get(name, name), f"{value:,.2f}", f"{value / computing:.1%}") for name, value in parts.items()]
    title = f"a step of {micro['sequences']} sequences, {micro['tokens']:,.0f} tokens"
    shown = [
        f"{harness.headline(result['recipe'], result)}\n{result['text']}",
        harness.format_variants(title, result["variants"]),
        console.format_table(("where the time goes", "ms", "of the step"), rows),
        console.wrap_notes(_notes(result)),
        memory.text(result["memory"]),
    ]
    return "\n\n".join(shown)


def _notes(result: Mapping[str, Any]) -> list[str]:
    """The recipe's own step and run, and how the figures are to be read."""
    micro, step = result["micro_batch"], result["recipe_step"]
    times, days = step["micro_batches_a_process"], step["days"]
    week, day = step["devices_for_a_week"], step["devices_for_a_day"]
    long = f"{days:,.0f} days" if days > 3 else console.format_duration(86400 * days)
    many = f": a week with {week:,} such devices, a day with {day:,}, if nothing is lost between them"
    return [
        f"The recipe's step of {step['sequences']:,} sequences, {times:,} x this micro-batch and one update, takes "
        f"{1000 * step['seconds']:,.0f} ms: {step['tokens_per_second']:,} tokens/s, {step['mfu']:.0%} of the peak.",
        f"Its {step['steps']:,} steps take {long} here{many if week > 1 else ''}.",
        "The share of the peak counts the full model's FLOPs, for everyone alike. Ours computes the last layer only at "
        "the rows that a head reads (pruning), which saves some of them. The rows computed are tokens of text, "
        f"{micro['share_filled']:.0%} of what padding to the full length would compute.",
    ]
