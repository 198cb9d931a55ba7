"""`albert bench pretrain`: what a recipe's step costs on this machine, where the time goes, how long it would take.

A micro-batch is timed as training computes it, update included, and `transformers` beside it on the same examples,
alternating. From its parts the recipe's own step is put together: as many micro-batches as its batch has, one update.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albert_cli import config as recipes
from albert_cli import console
from albert_cli.bench import memory, peer, speedup, stream
from albert_cli.bench.step import compiled, evaluating, padded, plain_step
from albert_cli.bench.timing import Timing, alternate
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import ConfigError
from albert_cli.model import hub
from albert_cli.model.heads import PretrainingModel
from albert_cli.ranks import Group, process_group
from albert_cli.training.device import (
    autocast,
    choose_device,
    matmul,
    matmul_peak,
    place,
    reproducible,
    resolve_auto,
    synchronize,
    use_threads,
)
from albert_cli.training.loop import MicroBatch, accumulate, clip, reduce_gradients
from albert_cli.training.objectives import PretrainingJob
from albert_cli.training.pretrain import resolve
from albert_cli.training.run import make_optimizer

PARTS = ("data", "forward", "backward", "optimizer", "communication")
_CPU_TOKENS = 1024  # of a micro-batch, where the recipe's own would take minutes


@dataclass(frozen=True)
class Options:
    """How to measure: sequences of a micro-batch (0: chosen by device), rounds, against what, and what else."""

    data: Path | None = None
    overrides: tuple[str, ...] = ()
    sequences: int = 0
    rounds: int = 5
    against: str | None = None
    compiled: bool = True
    speedup: bool = False
    device: str = "auto"


def run(name: str, options: Options) -> dict[str, Any]:
    """Measure; raises `ConfigError` for a recipe, a device or a peer that cannot be."""
    device = choose_device(options.device)
    with process_group(device.type) as group:
        if options.against and group.world_size > 1:
            raise ConfigError("--against compares one process with one", "leave out --nproc")
        bench = _Bench(name, options, device, group)
        with reproducible(bench.train.deterministic), use_threads(bench.train.threads):
            return bench.run()


class _Bench:
    """A recipe's model with its optimizer on the device, and the examples of every round."""

    def __init__(self, name: str, options: Options, device: torch.device, group: Group) -> None:
        self.name, self.options, self.device, self.group = name, options, device, group
        asked = recipes.override(recipes.read_recipe(name), options.overrides).get("model", {}).get("vocab_size")
        self.text = stream.read(options.data, asked)
        self.recipe = resolve(name, options.overrides, self.text.vocabulary)
        self.sequences = options.sequences or self._sequences()
        self.train = resolve_auto(
            replace(self.recipe.train, batch_size=self.sequences * group.world_size, micro_batch_size=self.sequences),
            self.recipe.model,
            device,
            sequences=self.sequences,
            length=self.recipe.data.max_seq_length,
        )
        torch.manual_seed(0)
        self.model = PretrainingModel(self.recipe.model)
        place(self.model, self.train, device)
        self.job = PretrainingJob(
            self.model, self.text.corpus, self.text.corpus, self.text.vocabulary, self.recipe.data,
            self.train, device, "", None,
        )  # fmt: skip
        self.optimizer = make_optimizer(self.model, self.recipe.optimizer)
        # Two calls of every variant warm up.
        self.batches = [self.job.draw(step, group) for step in range(options.rounds + 2)]

    def _sequences(self) -> int:
        """The recipe's micro-batch on a GPU; on a CPU what has about a thousand tokens."""
        most = self.recipe.batch.sequences(self.recipe.train, self.recipe.data.max_seq_length)
        return most if self.device.type != "cpu" else min(most, max(1, _CPU_TOKENS // self.recipe.data.max_seq_length))

    def run(self) -> dict[str, Any]:
        peak = matmul_peak(self.train.precision, self.device)
        variants, losses = self._variants()
        # What disturbs the rounds disturbs the products between them alike.
        product, flops = matmul(self.train.precision, self.device)
        timings = alternate({**variants, "peak": product}, self.options.rounds, self.device, "bench")
        peak = max(peak, flops / timings.pop("peak").minimum)
        parts = self._parts()
        peak = max(peak, matmul_peak(self.train.precision, self.device))
        found = {
            "recipe": self.name,
            "text": self.text.said,
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type,
            "processes": self.group.world_size,
            "threads": torch.get_num_threads(),
            "precision": self.train.precision,
            "compiled": self.train.compile == "on",
            "matmul_peak_flops": round(peak),
            "micro_batch": self._micro_batch(),
            "variants": {
                name: self._described(t, timings["albert"], peak, losses[name.removesuffix(", compiled")])
                for name, t in timings.items()
            },
            "parts_ms": {name: round(1e3 * seconds, 3) for name, seconds in parts.items()},
            "recipe_step": self._recipe_step(parts, peak),
            "memory": memory.measure(self.recipe.model, self._packed(0), self.train, self.device),
        }
        if self.options.speedup:
            found["speedup"] = speedup.measure(self.device, self.train.precision, self.options.rounds)
        return found

    # ------------------------------------------------------------ the micro-batch

    def _packed(self, round_: int) -> PackedBatch:
        return cast(PackedBatch, self.batches[round_][0].data)

    def _timed(self) -> list[MicroBatch]:
        """This rank's micro-batch of every timed round."""
        return [parts[0] for parts in self.batches[2:]]

    def _micro_batch(self) -> dict[str, Any]:
        lengths = np.concatenate([np.diff(part.data.offsets) for part in self._timed()])
        return {
            "sequences": self.sequences,
            "tokens": round(float(lengths.sum()) / self.options.rounds, 1),
            "share_filled": round(float(lengths.mean()) / self.recipe.data.max_seq_length, 4),
            "model_flops": round(median(part.flops for part in self._timed())),
        }

    def _variants(self) -> tuple[dict[str, Callable[[], float]], dict[str, float]]:
        """The step of everyone who takes part, and each one's loss without dropout before anything is timed."""
        variants = {"albert": self._own()}
        losses = {"albert": self._loss(lambda batch: self._own_loss(batch))}
        if self.options.against == "transformers":
            twin = peer.twin(self.model)
            losses["transformers"] = self._loss(lambda batch: self._peer_loss(twin, batch), twin)
            if self.options.compiled and self.train.compile == "off":
                variants["albert, compiled"] = compiled(self.model, self._own())
            variants["transformers"] = self._peer(twin, twin)
            if self.options.compiled:
                variants["transformers, compiled"] = self._peer(twin, torch.compile(twin))  # type: ignore[arg-type]
        return variants, losses

    def _own(self) -> Callable[[], float]:
        """One whole step of ours; the rate is 0, so that all rounds compute with the same weights."""
        rounds = count()

        def step() -> float:
            parts = self.batches[next(rounds) % len(self.batches)]
            means = accumulate(self.job, parts, self.train, 0, self.group, self.device)
            norm = clip(self.optimizer, self.recipe.optimizer.clip_norm)
            read = torch.stack([*means.values(), norm]).tolist()  # as the loop does before it updates
            self.optimizer.step(0.0)
            self.optimizer.zero_grad()
            return float(sum(read[: len(self.job.loss_names)]))

        return step

    def _peer(self, twin: torch.nn.Module, called: torch.nn.Module) -> Callable[[], float]:
        """One step as a plain training script has it, padded."""
        rounds = count()
        return plain_step(
            twin,
            lambda: self._peer_loss(called, self._packed(next(rounds) % len(self.batches))),
            self.train.precision,
            self.device,
        )

    def _own_loss(self, batch: PackedBatch) -> Tensor:
        sums = self.job.loss_sums(batch)
        ordered = max(1, int(np.count_nonzero(batch.order_labels >= 0)))
        over = {"mlm_loss": len(batch.masked_labels), "order_loss": ordered}
        return torch.stack([sums[name] / over[name] for name in self.job.loss_names]).sum()

    def _peer_loss(self, called: torch.nn.Module, batch: PackedBatch) -> Tensor:
        """Padded to the longest of the batch, as the usual collators do; -100 where there is nothing to predict."""
        given = padded(batch, self.device)
        lengths = np.diff(batch.offsets)
        row = np.repeat(np.arange(len(lengths)), lengths)[batch.masked_index]
        labels = np.full(tuple(given["input_ids"].shape), -100, np.int64)
        labels[row, batch.position_ids[batch.masked_index]] = batch.masked_labels
        orders = np.where(batch.order_labels < 0, -100, batch.order_labels).astype(np.int64)
        to = {"labels": torch.from_numpy(labels).to(self.device)}
        if self.recipe.data.sentence_loss == "none":
            scores = called(**given).prediction_logits
            return F.cross_entropy(scores.flatten(0, 1), to["labels"].flatten(), ignore_index=-100)
        order_name = "sentence_order_label" if hub.model_type(self.model.config) == "albert" else "next_sentence_label"
        return cast(Tensor, called(**given, **to, **{order_name: torch.from_numpy(orders).to(self.device)}).loss)

    def _loss(self, loss: Callable[[PackedBatch], Tensor], *models: torch.nn.Module) -> float:
        with torch.inference_mode(), evaluating(self.model, *models), autocast(self.train.precision, self.device):
            return float(loss(self._packed(0)))

    def _described(self, timing: Timing, ours: Timing, peak: float, losses: float) -> dict[str, float]:
        """Medians over the rounds, each with its own number of tokens; `mfu` counts the full model's FLOPs."""
        timed = list(zip(timing.seconds, ours.seconds, self._timed(), strict=True))
        return {
            "median_ms": round(1e3 * timing.median, 2),
            "tokens_per_second": round(self.group.world_size * median(part.tokens / s for s, _, part in timed)),
            "mfu": round(median(part.flops / s for s, _, part in timed) / peak, 4),
            "albert_is_faster": round(median(s / own for s, own, _ in timed), 3),
            "loss": round(losses, 6),
        }

    # ------------------------------------------------------------ its parts

    def _parts(self) -> dict[str, float]:
        """Median seconds of each part of a step, with a wait for the device between them."""
        seconds: dict[str, list[float]] = {name: [] for name in PARTS}
        for number, parts in enumerate(self.batches):

            @contextmanager
            def timed(part: str, counts: bool = number >= 2) -> Iterator[None]:
                synchronize(self.device)
                begin = time.perf_counter()
                yield
                synchronize(self.device)
                if counts:
                    seconds[part].append(time.perf_counter() - begin)

            with timed("data"):
                self.job.draw(number, self.group)
            with timed("forward"), autocast(self.train.precision, self.device):
                loss = self._own_loss(cast(PackedBatch, parts[0].data))
            with timed("backward"):
                loss.backward()  # type: ignore[no-untyped-call]
            with timed("communication"):
                if self.group.world_size > 1:
                    reduce_gradients(self.model, self.group)
            with timed("optimizer"):
                clip(self.optimizer, self.recipe.optimizer.clip_norm)
                self.optimizer.step(0.0)
                self.optimizer.zero_grad()
        return {name: median(found) for name, found in seconds.items()}

    def _recipe_step(self, parts: Mapping[str, float], peak: float) -> dict[str, Any]:
        """The recipe's own step and run, put together from the parts; drawing goes on beside the computation."""
        batch, ranks = self.recipe.train.batch_size, self.group.world_size
        times = math.ceil(batch / (self.sequences * ranks))  # micro-batches of the rank that has most
        computing = times * max(parts["forward"] + parts["backward"], parts["data"])
        seconds = computing + parts["communication"] + parts["optimizer"]
        micro = self._micro_batch()
        tokens = micro["tokens"] / self.sequences * batch
        days = seconds * self.recipe.schedule.total_steps / 86400
        return {
            "sequences": batch,
            "micro_batches_a_process": times,
            "seconds": round(seconds, 7),
            "tokens_per_second": round(tokens / seconds),
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
    ranks = f"{result['processes']} processes of " if result["processes"] > 1 else ""
    return "\n\n".join(
        [
            f"{result['recipe']} on {ranks}{result['device']}, {result['threads']} threads, {result['precision']}"
            f"{', compiled' if result['compiled'] else ''}; matrix products reach "
            f"{result['matmul_peak_flops'] / 1e9:,.0f} GFLOP/s\n{result['text']}",
            _variants_text(result),
            _parts_text(result),
            console.wrapped(_needs(result)),
            _memory_text(result),
            *([speedup.text(result["speedup"])] if "speedup" in result else []),
        ]
    )


def _needs(result: Mapping[str, Any]) -> list[str]:
    """The recipe's own step and run, and how the figures are to be read."""
    micro, step = result["micro_batch"], result["recipe_step"]
    times, days, week = step["micro_batches_a_process"], step["days"], step["devices_for_a_week"]
    long = f"{days:,.0f} days" if days > 3 else console.duration(86400 * days)
    day = step["devices_for_a_day"]
    many = (
        f": a week with {week:,} such devices, a day with {day:,}, if nothing is lost between them" if week > 1 else ""
    )
    return [
        f"The recipe's step of {step['sequences']:,} sequences, {times:,} x this micro-batch and one update, takes "
        f"{1000 * step['seconds']:,.0f} ms: {step['tokens_per_second']:,} tokens/s, {step['mfu']:.0%} of the peak.",
        f"Its {step['steps']:,} steps take {long} here{many}.",
        "The share of the peak counts the full model's FLOPs, for everyone alike. Ours computes the last layer only at "
        "the rows that a head reads (pruning), which saves some of them. The rows computed are tokens of text, "
        f"{micro['share_filled']:.0%} of what padding to the full length would compute.",
    ]


def _variants_text(result: Mapping[str, Any]) -> str:
    micro = result["micro_batch"]
    headers = (
        f"a step of {micro['sequences']} sequences, {micro['tokens']:,.0f} tokens",
        "median ms", "tokens/s", "of peak", "albert is", "loss",
    )  # fmt: skip
    rows = [
        (
            name,
            f"{v['median_ms']:,.1f}",
            f"{v['tokens_per_second']:,}",
            f"{v['mfu']:.0%}",
            "" if name == "albert" else f"{v['albert_is_faster']:.2f}x",
            f"{v['loss']:.5f}",
        )
        for name, v in result["variants"].items()
    ]
    return console.table(headers, rows)


def _parts_text(result: Mapping[str, Any]) -> str:
    parts = result["parts_ms"]
    computing = sum(value for name, value in parts.items() if name != "data")
    said = {"data": "data, drawn beside the computation"}
    rows = [(said.get(name, name), f"{value:,.2f}", f"{value / computing:.1%}") for name, value in parts.items()]
    return console.table(("where the time goes", "ms", "of the step"), rows)


def _memory_text(result: Mapping[str, Any]) -> str:
    def mb(value: int | None) -> str:
        return "–" if value is None else f"{value / 1e6:,.1f}"

    headers = ("memory of the micro-batch, MB", "activations", "estimated", "state, estimated", "device's peak")
    keys = ("activations_kept", "activations_estimated", "state_estimated", "peak")
    return console.table(headers, [(name, *(mb(m[k]) for k in keys)) for name, m in result["memory"].items()])
