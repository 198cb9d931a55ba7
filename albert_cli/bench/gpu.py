"""`albert bench gpu`: everything that there is to measure on a GPU, in parts of a few minutes, each kept when done.

First whether the GPU computes what the CPU does; then a recipe's step by model and length, against `transformers` and
against the goals; then variants of the same step. One JSON and one Markdown file hold what has been measured so far.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch

from albert_cli import __version__, console, store
from albert_cli.bench import correctness, harness, kernels, memory, pretrain, step
from albert_cli.counting import costs
from albert_cli.errors import AlbertError, ConfigError
from albert_cli.model import encoder
from albert_cli.training.device import choose_device
from albert_cli.training.pretrain_recipe import PretrainRecipe

SIZES: Final = ("base", "large", "xlarge", "xxlarge")
LENGTHS: Final = (128, 512)
# Tokens a second of pretraining in bf16 on one H200: what a bottom-up estimate says that kernels can reach (products at
# 82 to 90 % of the 790 TFLOP/s that a large one reaches, elementwise passes at the 4.3 TB/s of a copy).
GOALS: Final = {
    ("base", 128): 950_000,
    ("base", 512): 870_000,
    ("large", 512): 265_000,
    ("xlarge", 512): 80_000,
    ("xxlarge", 512): 42_000,
}
# How many times as fast as transformers on the same text, as it is and compiled.
FASTER: Final = {"transformers": 4.0, "transformers, compiled": 2.0}
# What a profile is to show, and the milliseconds of four fine-tuning steps at which eight processes take the 443,000
# steps of GLUE, eight tasks with five seeds, in 15 minutes.
ASKED: Final = {"busy": "at least 0.95", "waits": "at most 1", "pageable_copies": "0"}
FINE_TUNING_MS: Final = 4 * 8 * 15 * 60_000 / 443_000
# Tokens of a micro-batch that leave room on 141 GB for transformers, whose activations take several times ours.
_TOKENS: Final = {"base": 32_768, "large": 32_768, "xlarge": 16_384, "xxlarge": 16_384}
_COMPILED_PEER: Final = ("base", "large")  # compiling the others takes more minutes than a part has
# No dropout, as the second release of the models was trained.
_NO_DROPOUT: Final = ("model.hidden_dropout_prob=0.0", "model.attention_probs_dropout_prob=0.0")
AS_TRAINED: Final = "as trained"
VARIANTS: Final[dict[str, tuple[str, ...]]] = {
    AS_TRAINED: (),
    "padded attention": (),
    "not compiled": ("train.compile=off",),
    "deterministic": ("train.deterministic=true",),
    "activations recomputed": ("train.checkpoint_activations=true",),
    "dropout 0.1": ("model.hidden_dropout_prob=0.1", "model.attention_probs_dropout_prob=0.1"),
}
# Attention pads sequences to a rectangle, also where the variable-length kernel applies.
_PADDED: Final = mock.patch.object(encoder, "has_varlen", lambda device, dtype, head_size: False)
JSON, MARKDOWN = "bench.json", "bench.md"
Found = dict[str, Any]


@dataclass(frozen=True)
class GpuBenchOptions:
    """How to measure: text (None: random ids), values of all recipes, tokens of a micro-batch (0: by model), rounds."""

    data: str | None = None
    overrides: tuple[str, ...] = ()
    tokens: int = 0
    rounds: int = 9
    alone: bool = False
    device: str = "cuda"


def run(out: Path, wanted: Sequence[str], options: GpuBenchOptions) -> Found:
    """Measure the parts that are wanted (none: all that `out` lacks) and return all that `out` then holds.

    Each part is written when it is done. One that fails is noted, and the others go on; `AlbertError` at the end names
    it. A correctness that is not right ends at once. Raises `ConfigError` for a part that does not exist and for an
    `out` that was measured under other conditions.
    """
    device = choose_device(options.device)
    options = replace(options, device=device.type)
    if unknown := [part for part in wanted if part not in PARTS]:
        raise ConfigError(f"--part {unknown[0]}: there is none", f"choose from {', '.join(PARTS)}")
    for size in SIZES:
        _prepared(size, options)  # raises where overrides or data are wrong
    conditions = {
        "device": harness.conditions(device, "")["device"],
        "versions": {"albert": __version__, "torch": torch.__version__},
        **asdict(options),
        "overrides": list(options.overrides),
    }
    with store.lock(out):
        found: Found = {"conditions": conditions, "parts": {}} | harness.load_previous(out / JSON, conditions)
        parts = found["parts"]
        for name in wanted or [name for name in PARTS if not _is_good(parts.get(name))]:
            console.info(f"part {list(PARTS).index(name) + 1} of {len(PARTS)}: {name}")
            begin = time.monotonic()
            parts[name] = _attempted(partial(PARTS[name], options))
            parts[name]["seconds"] = round(time.monotonic() - begin, 1)
            found["parts"] = {part: parts[part] for part in PARTS if part in parts}
            store.write_json(out / JSON, found)
            store.write_text(out / MARKDOWN, text(found, console.format_markdown_table) + "\n")
            if parts[name].get("is_right") is False:
                raise AlbertError(f"{device}: does not compute what the CPU does; see {out / MARKDOWN}")
    failed = [f"{name} ({found['failed']})" for name, found in parts.items() if found.get("failed")]
    if failed:
        raise AlbertError(f"{out}: failed: {'; '.join(failed)}", "the same command measures these again")
    return found


def _is_good(part: Found | None) -> bool:
    """Whether a part was measured, did not fail, and computed what it should."""
    return part is not None and "failed" not in part and "forms" not in part and part.get("is_right") is not False


def _attempted(measure: Callable[[], Found]) -> Found:
    """What `measure` finds, or why it failed: the other parts are still to be measured."""
    # What the last measurement holds goes: models in cycles, what an exception kept, compiled forms.
    gc.collect()
    torch._dynamo.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    try:
        return measure()
    except torch.OutOfMemoryError:
        failed = "out of memory"
    except (RuntimeError, AlbertError) as error:
        failed = str(error).strip().split("\n")[0] or type(error).__name__
    return {"failed": failed}


# ---------------------------------------------------------------- the parts


def _prepared(size: str, options: GpuBenchOptions) -> PretrainRecipe:
    return pretrain.prepare(*_asked(size, LENGTHS[0], options, LENGTHS[0]))[0]


def _asked(
    size: str, length: int, options: GpuBenchOptions, tokens: int, more: Sequence[str] = (), against: str | None = None
) -> tuple[str, pretrain.PretrainBenchOptions]:
    return f"pretrain/albert-{size}", pretrain.PretrainBenchOptions(
        Path(options.data) if options.data else None,
        (*_NO_DROPOUT, f"data.max_seq_length={length}", *more, *options.overrides),
        max(1, tokens // length),
        options.rounds,
        against,
        against is not None and options.device == "cuda" and size in _COMPILED_PEER,
        device=options.device,
    )


def _correctness(options: GpuBenchOptions) -> Found:
    recipe = _prepared("base", options)
    return correctness.measure(recipe.model, recipe.train, choose_device(options.device))


def _step(size: str, length: int, options: GpuBenchOptions) -> Found:
    """The step, beside transformers' unless it is to be alone."""
    against = None if options.alone else "transformers"
    asked = _asked(size, length, options, options.tokens or _TOKENS[size], against=against)
    return {"results": {"": pretrain.run(*asked)}}


def _variants(size: str, length: int, options: GpuBenchOptions) -> Found:
    """The step by variant, one after the other; one that fails stops none of the others."""
    found, tokens = {}, options.tokens or _TOKENS[size]
    for name, overrides in VARIANTS.items():
        with _PADDED if name == "padded attention" else nullcontext():
            found[name] = _attempted(partial(pretrain.run, *_asked(size, length, options, tokens, overrides)))
    return {"results": found}


def _sweep(options: GpuBenchOptions) -> Found:
    """The step by tokens of a micro-batch, up to what `batch.micro_tokens = "auto"` takes."""
    tokens = [(options.tokens or 131_072) // share for share in (8, 4, 2, 1)]
    asked = {f"{n:,} tokens": _asked("base", 512, options, n) for n in tokens}
    return {"results": {name: _attempted(partial(pretrain.run, *of)) for name, of in asked.items()}}


def _profile(size: str, options: GpuBenchOptions) -> Found:
    return {"profile": pretrain.profile_step(*_asked(size, 512, options, options.tokens or _TOKENS[size]))}


PARTS: Final[dict[str, Callable[[GpuBenchOptions], Found]]] = {
    "correctness": _correctness,
    **{f"{size}-s{length}": partial(_step, size, length) for size in SIZES for length in LENGTHS},
    **{
        f"variants-{size}-s{length}": partial(_variants, size, length)
        for size, length in (("base", 128), ("base", 512), ("xxlarge", 512))
    },
    "sweep-base-s512": _sweep,
    **{f"profile-{size}-s512": partial(_profile, size) for size in SIZES},
    "attention": lambda asked: {
        "attention": kernels.attention(choose_device(asked.device), asked.rounds, asked.tokens or 32_768)
    },
    # A forward and backward pass on real GLUE lengths, where the host's work counts.
    "fine-tuning": lambda asked: {
        "fine_tuning": step.run("albert-base", ["glue"], 0, asked.rounds, asked.alone, True, "bf16", asked.device)
    },
    "batches": lambda asked: {"batches": memory.find_largest_batches(choose_device(asked.device))},
}


# ---------------------------------------------------------------- shown

_HEADERS: Final = ("model", "length", "", "tokens", "tokens/s", "of peak", "of the goal", "albert is", "peak GB")


def text(found: Mapping[str, Any], render: Callable[[Sequence[str], Sequence[Sequence[object]]], str]) -> str:
    """All that has been measured, as tables."""
    conditions, parts = found["conditions"], found["parts"]
    source = conditions["data"] or "random ids laid out like text"
    lines = [f"{conditions['device']}, torch {conditions['versions']['torch']}; {source}; no dropout"]
    results = [(name, *item) for name, part in parts.items() for item in part.get("results", {}).items()]
    if results:
        peak = max(result.get("matmul_peak_flops", 0) for _, _, result in results)
        lines.append(
            f"Matrix products reach {peak / 1e12:,.1f} TFLOP/s. The share of the peak counts the full model's FLOPs; "
            "updates are included. Goal: tokens/s of one H200; albert is to be "
            + " and ".join(f"{times:g}x as fast as {name}" for name, times in FASTER.items())
            + "."
        )
        lines.append(render(_HEADERS, [row for result in results for row in _rows(*result)]))
    if "form" in parts.get("correctness", {}):
        lines.append(correctness.text(parts["correctness"]))
    for name, part in parts.items():
        if profile := part.get("profile"):
            counts = [(k.replace("_", " "), v, ASKED.get(k, "")) for k, v in profile.items() if k != "kernels_ms"]
            lines.append(render((f"{name}, a step", "", "goal"), counts))
            lines.append(render(("kernel", "ms a step"), list(profile["kernels_ms"].items())))
    if kinds := parts.get("attention", {}).get("attention"):
        columns = list(next(iter(kinds.values())))
        shown = [(shape, *(row[name] for name in columns)) for shape, row in kinds.items()]
        lines.append(render(("attention alone, ms", *columns), shown))
    if measured := parts.get("fine-tuning", {}).get("fine_tuning"):
        variants = measured["works"]["glue"]["variants"]
        steps = []
        for name, v in variants.items():
            beside = (f"{FINE_TUNING_MS:.0f} ms", "") if name == "albert" else ("", f"{v['albert_is_faster']:.2f}x")
            steps.append((name, v["median_ms"], f"{v['tokens_per_second']:,}", *beside))
        headers = ("a batch of each of four GLUE tasks", "median ms", "tokens/s", "goal", "albert is")
        lines.append(render(headers, steps))
    if tried := parts.get("batches", {}).get("batches"):
        each = [(name, how, *fits) for name, row in tried.items() for how, fits in row.items()]
        lines.append(render(("largest batch at 12 GB", "", *map(str, costs.LENGTHS)), each))
    lines.extend(f"{name}: failed: {part['failed']}" for name, part in parts.items() if part.get("failed"))
    times = [f"{name} {part['seconds']:,.0f}" for name, part in parts.items() if "seconds" in part]
    lines.append("Seconds: " + ", ".join(times))
    return "\n\n".join(lines)


def _rows(part: str, label: str, result: Mapping[str, Any]) -> list[list[str]]:
    """A row for each variant of a result of `albert bench pretrain`."""
    *_, size, length = part.split("-")
    if "failed" in result:
        return [[size, length, f"{label}: {result['failed']}", *[""] * (len(_HEADERS) - 3)]]
    rows, peak = [], result["memory"]["dropout 0"]["peak"]
    for name, v in result["variants"].items():
        ours, goal = name == "albert", GOALS.get((size, int(length[1:])))
        cells = [f"{result['micro_batch']['tokens']:,.0f}", f"{v['tokens_per_second']:,}", f"{v['mfu']:.0%}"]
        cells.append(f"{v['tokens_per_second'] / goal:.0%}" if goal and ours else "")
        cells.append("" if ours else f"{v['albert_is_faster']:.2f}x")
        cells.append(f"{peak / 1e9:,.1f}" if ours and peak is not None else "")
        rows.append([size, length, ", ".join(filter(None, (name, label))), *cells])
    return rows
