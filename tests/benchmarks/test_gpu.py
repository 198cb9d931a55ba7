"""Tests of `benchmarks.gpu`, on the CPU with tiny models."""

from __future__ import annotations

import json
import math
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from albert_cli import config, console
from albert_cli.bench import pretrain as pretrain_bench
from albert_cli.bench.pretrain import PretrainBenchOptions
from albert_cli.model import block
from albert_cli.training.optimizers import Lamb
from albert_cli.training.pretrain_recipe import PretrainRecipe
from benchmarks import gpu
from tests.helpers.benchmarks import run_benchmark
from tests.helpers.markdown import find_table
from tests.helpers.snapshots import stored_text

SMALL = ("hidden_size=32", "embedding_size=16", "intermediate_size=64", "num_hidden_layers=2", "num_attention_heads=2")
OPTIONS = ("--device", "cpu", "--tokens", 256, "--rounds", 1, "-s", "train.precision=fp32")
TINY = [*OPTIONS, *(word for value in (*SMALL, "vocab_size=200") for word in ("-s", f"model.{value}"))]

# One part of each kind, and two variants; the other parts and variants differ only in values of the recipe.
KINDS = ("correctness", "base-s128", "variants-base-s512", "sweep-base-s512", "profile-base-s512", "attention")
FEW_VARIANTS = (gpu.AS_TRAINED, gpu.PADDED)


def shorten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gpu, "PARTS", {name: gpu.PARTS[name] for name in KINDS})
    patch.setattr(gpu, "VARIANTS", {name: gpu.VARIANTS[name] for name in FEW_VARIANTS})


@pytest.fixture(autouse=True)
def shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The output directory and all parts, which two calls have measured: the first two parts, and then the others."""
    out = tmp_path_factory.mktemp("gpu") / "speeds"
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        two_parts = ("--part", "correctness", "--part", "base-s128")
        first = json.loads(run_benchmark(gpu.app, "--out", out, *two_parts, *TINY, "--json").out)
        assert list(first["parts"]) == ["correctness", "base-s128"]
        notes = run_benchmark(gpu.app, "--out", out, *TINY).err
    assert "part 3 of 6: variants-base-s512" in notes and "base-s128" not in notes
    return out, json.loads((out / "bench.json").read_text())["measured"]


def test_parts_cover_every_model_and_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    steps = [f"{size}-s{length}" for size in gpu.SIZES for length in gpu.LENGTHS]
    assert list(gpu.PARTS)[:9] == ["correctness", *steps]
    assert set(KINDS) < set(gpu.PARTS) and {(s, n) for s in gpu.SIZES for n in gpu.LENGTHS} > gpu.GOALS.keys()
    defaults = config.to_toml_values(PretrainRecipe())
    for overrides in gpu.VARIANTS.values():
        for value in overrides:
            section, key = value.split("=")[0].split(".")
            assert key in defaults[section]


def test_every_part_is_measured_and_saved(measured: tuple[Path, dict[str, Any]]) -> None:
    out, parts = measured
    assert list(parts) == list(KINDS)
    assert sorted(p.name for p in out.iterdir() if p.name != ".lock") == ["bench.json", "bench.md"]
    assert all(part["seconds"] >= 0 for part in parts.values())
    step = parts["base-s128"]["results"][""]
    assert list(step["variants"]) == ["albert", "transformers"]
    assert step["variants"]["albert"]["loss"] == pytest.approx(step["variants"]["transformers"]["loss"], rel=1e-3)
    variants = parts["variants-base-s512"]["results"]
    assert list(variants) == list(FEW_VARIANTS)
    assert [result["micro_batch"]["sequences"] for result in (step, *variants.values())] == [2, 1, 1]


def test_markdown_has_a_row_for_every_variant(measured: tuple[Path, dict[str, Any]]) -> None:
    text = (measured[0] / "bench.md").read_text()
    rows = find_table(text, "model", "of the goal")
    titles = ["albert", "transformers", "albert, as trained", "albert, padded attention"]
    assert [row[""] for row in rows] == [*titles, *(f"albert, {n} tokens" for n in (32, 64, 128, 256))]
    assert [bool(row["of the goal"]) for row in rows] == [row[""].startswith("albert") for row in rows]
    assert [bool(row["speedup of albert"]) for row in rows] == [row[""] == "transformers" for row in rows]
    assert len(find_table(text, "kernel")) == len(measured[1]["profile-base-s512"]["profile"]["kernels_ms"])
    assert len(find_table(text, "attention alone, ms")) == len(measured[1]["attention"]["attention"])


def test_tables_of_fixed_measurements_are_those_stored() -> None:
    """One part of each kind, and two that failed."""
    timing = {"tokens_per_second": 475_000, "mfu": 0.41}
    variants = {"albert": timing | {"speedup": 1.0}, "transformers": timing | {"speedup": 2.5}}
    step = {"matmul_peak_flops": 7.9e14, "micro_batch": {"tokens": 32_768}, "variants": variants}
    step["memory"] = {"dropout 0": {"peak": 21_500_000_000}}
    profile = {"ms": 40.0, "busy": 0.97, "launches": 310.0, "waits": 1.0, "pageable_copies": 0.0}
    losses = {"loss_fp32_cpu": 10.5, "loss": 10.50012, "loss_difference": 1.2e-5, "gradient_difference": 3.4e-3}
    fine_tuning = {"median_ms": 70.0, "tokens_per_second": 90_000, "speedup": 2.5}
    parts = {
        "correctness": gpu.Part(correctness={"form": "bf16, compiled", **losses, "is_correct": True}, seconds=12.0),
        "base-s128": gpu.Part(results={"": step}, seconds=34.0),
        "variants-base-s512": gpu.Part(results={"as trained": step, "deterministic": {"failed": "no memory"}}),
        "profile-base-s512": gpu.Part(profile=profile | {"kernels_ms": {"gemm": 21.5, "layer_norm": 3.25}}),
        "attention": gpu.Part(attention={"12 heads of 64": {"varlen": 1.5, "padded": "no kernel"}}),
        "fine-tuning": gpu.Part(
            fine_tuning={"works": {"glue": {"variants": {"albert": fine_tuning, "transformers": fine_tuning}}}}
        ),
        "batches": gpu.Part(batches={"albert-base": {"measured": [64] * 6, "by_arithmetic": [65] * 6}}),
        "profile-large-s512": gpu.Part(failed="CUDA error"),
    }
    conditions = {"device_name": "a GPU", "data": None, "versions": {"torch": "2"}}
    text = gpu.format_result(gpu.GpuBenchResult(conditions, parts), console.format_markdown_table) + "\n"
    assert text == stored_text(Path(__file__).parent / "snapshots" / "gpu.md", text)


def test_profile_counts_operations_on_a_cpu(measured: tuple[Path, dict[str, Any]]) -> None:
    profile = measured[1]["profile-base-s512"]["profile"]
    assert profile["launches"] > 100 and 0 < profile["busy"] <= 1
    assert profile["waits"] == profile["pageable_copies"] == 0
    times = list(profile["kernels_ms"].values())
    assert times == sorted(times, reverse=True) and sum(times) < 1.1 * profile["ms"]
    assert any("mm" in name for name in profile["kernels_ms"])


def test_other_conditions_are_rejected(measured: tuple[Path, dict[str, Any]]) -> None:
    assert "alone: False -> True" in run_benchmark(gpu.app, "--out", measured[0], *TINY, "--alone", expect=2).err


@pytest.mark.parametrize(
    ("extra", "message"),
    [(("--part", "fp9"), ", variants-base-s512"), (("-s", "model.hiden_size=3"), "hiden_size")],
)
def test_wrong_arguments_leave_nothing(extra: tuple[str, str], message: str, tmp_path: Path) -> None:
    assert message in run_benchmark(gpu.app, "--out", tmp_path / "new", *TINY, *extra, expect=2).err
    assert not (tmp_path / "new").exists()


def test_part_that_fails_is_recorded_and_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(name: str, options: PretrainBenchOptions) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access\nwith many lines")

    call = ("--out", tmp_path, "--part", "base-s128", *TINY)
    with monkeypatch.context() as patch:
        patch.setattr(pretrain_bench, "run_pretrain_bench", fail)
        message = run_benchmark(gpu.app, *call, expect=1).err
    assert "base-s128 (CUDA error: an illegal memory access)" in message
    assert "base-s128: failed: CUDA error" in (tmp_path / "bench.md").read_text()
    assert "failed" not in run_benchmark(gpu.app, *call).out


def test_data_of_another_vocabulary_are_rejected(tiny_data: Path, tmp_path: Path) -> None:
    message = run_benchmark(gpu.app, "--out", tmp_path / "new", "--data", tiny_data, *TINY, expect=2).err
    assert "model.vocab_size is 200" in message and not (tmp_path / "new").exists()


def test_memory_of_the_last_part_is_freed() -> None:
    class Model:
        itself: Any

    model = Model()
    model.itself = model  # a reference cycle, as between models and their steps
    reference = weakref.ref(model)
    del model
    part = gpu._attempt(lambda options: gpu.Part(profile={"is_freed": reference() is None}), gpu.GpuBenchOptions())
    assert part.profile == {"is_freed": True}


def test_bench_creates_one_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two optimizers would hold the moments twice, 1.8 GB for xxlarge."""
    optimizers = list[Lamb]()
    original = Lamb.__init__

    def record(self: Lamb, *arguments: Any, **options: Any) -> None:
        optimizers.append(self)
        original(self, *arguments, **options)

    monkeypatch.setattr(Lamb, "__init__", record)
    shape = ("train.precision=fp32", *(f"model.{value}" for value in (*SMALL, "vocab_size=200")))
    options = PretrainBenchOptions(overrides=shape, sequences=1, rounds=1, device="cpu")
    pretrain_bench.run_pretrain_bench("pretrain/albert-base", options)
    assert len(optimizers) == 1


def test_wrong_gradient_ends_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(block, "_add_and_norm", _wrong_in_bf16(block._add_and_norm))
    call = ("--out", tmp_path, *("train.precision=bf16" if word == OPTIONS[-1] else word for word in TINY))
    for _ in range(2):  # the second call measures it again
        assert "differ from the CPU's by more than rounding" in run_benchmark(gpu.app, *call, expect=1).err
        assert list(json.loads((tmp_path / "bench.json").read_text())["measured"]) == ["correctness"]
    text = (tmp_path / "bench.md").read_text()
    assert "bf16: loss" in text and "NOT within rounding" in text


def test_losses_that_are_not_finite_are_saved_as_null(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(block, "_add_and_norm", _wrong_in_bf16(block._add_and_norm, factor=math.nan))
    call = ("--out", tmp_path, *("train.precision=bf16" if word == OPTIONS[-1] else word for word in TINY))
    for part in ("correctness", "base-s128", "correctness"):  # each call reads the measurements of those before
        code = 1 if part == "correctness" else 0
        run_benchmark(gpu.app, *call, "--part", part, "--alone", expect=code)
    parts = json.loads((tmp_path / "bench.json").read_text())["measured"]
    assert parts["correctness"]["correctness"]["loss"] is None
    assert parts["correctness"]["correctness"]["gradient_difference"] is None
    assert parts["base-s128"]["results"][""]["variants"]["albert"]["loss"] is None
    assert "bf16: loss not finite" in (tmp_path / "bench.md").read_text()


def test_parts_get_the_chosen_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Parts get the device that "auto" chooses, because it determines which models are compiled."""
    monkeypatch.setattr(gpu, "PARTS", {"device": lambda options: gpu.Part(profile={"device": options.device})})
    monkeypatch.setattr(gpu, "choose_device", lambda name: torch.device("cpu"))
    monkeypatch.setattr(gpu, "_format_part", lambda name, part, render: [])
    result = gpu.run_gpu_bench(tmp_path, [], gpu.GpuBenchOptions(device="auto"))
    assert result.parts["device"].profile == {"device": "cpu"}


def _wrong_in_bf16(original: Any, factor: float = 1.5) -> Any:
    """Return a layer with wrong results if its matmuls are in bf16."""

    def add_and_norm(*arguments: Any) -> Any:
        return original(*arguments) * (factor if torch.is_autocast_enabled("cpu") else 1.0)

    return add_and_norm
