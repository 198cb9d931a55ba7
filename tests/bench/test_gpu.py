"""`albert bench gpu` from end to end on the CPU, at a tiny size: the same parts, the same files."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from albert_cli import config, console
from albert_cli.bench import gpu, harness, memory, pretrain
from albert_cli.machine import measure_matmul_peak
from albert_cli.model import block
from albert_cli.model.config import PRESETS
from albert_cli.training.optimizers import Lamb
from albert_cli.training.pretrain_recipe import PretrainRecipe
from tests.command import albert

SMALL = ("hidden_size=32", "embedding_size=16", "intermediate_size=64", "num_hidden_layers=2", "num_attention_heads=2")
FEW = ("--device", "cpu", "--tokens", 256, "--rounds", 1, "-s", "train.precision=fp32")
TINY = [*FEW, *(word for value in (*SMALL, "vocab_size=200") for word in ("-s", f"model.{value}"))]


# One part of each kind, and two variants: the others differ in a recipe's values.
KINDS = ("correctness", "base-s128", "variants-base-s512", "sweep-base-s512", "profile-base-s512", "attention")
FEW_VARIANTS = (gpu.AS_TRAINED, "padded attention")


def hurry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        harness,
        "matmul_peak",
        lambda precision, device, seconds=0.0: measure_matmul_peak(precision, device, seconds=0.0),
    )
    patch.setattr(gpu, "PARTS", {name: gpu.PARTS[name] for name in KINDS})
    patch.setattr(gpu, "VARIANTS", {name: gpu.VARIANTS[name] for name in FEW_VARIANTS})


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """All parts, the first two on their own before the others."""
    out = tmp_path_factory.mktemp("gpu") / "speeds"
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch)
        two = ("--part", "correctness", "--part", "base-s128")
        first = json.loads(albert("bench", "gpu", "--out", out, *two, *TINY, "--json").out)
        assert list(first["parts"]) == ["correctness", "base-s128"]
        said = albert("bench", "gpu", "--out", out, *TINY).err
    assert "part 3 of 6: variants-base-s512" in said and "base-s128" not in said
    return out, json.loads((out / "bench.json").read_text())


def test_there_is_a_part_for_every_model_and_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    steps = [f"{size}-s{length}" for size in gpu.SIZES for length in gpu.LENGTHS]
    assert list(gpu.PARTS)[:9] == ["correctness", *steps]
    assert set(KINDS) < set(gpu.PARTS) and {(s, n) for s in gpu.SIZES for n in gpu.LENGTHS} > gpu.GOALS.keys()
    known = config.default_values(PretrainRecipe)
    for overrides in gpu.VARIANTS.values():
        for value in overrides:
            section, key = value.split("=")[0].split(".")
            assert key in known[section]


def test_every_part_is_measured_and_kept(measured: tuple[Path, dict[str, Any]]) -> None:
    out, found = measured
    assert list(found["parts"]) == list(KINDS)
    assert sorted(p.name for p in out.iterdir() if p.name != ".lock") == ["bench.json", "bench.md"]
    assert found["conditions"]["device"] == "cpu"
    assert all(part["seconds"] >= 0 for part in found["parts"].values())
    full = found["parts"]["base-s128"]["results"][""]
    assert list(full["variants"]) == ["albert", "transformers"]
    assert full["variants"]["albert"]["loss"] == pytest.approx(full["variants"]["transformers"]["loss"], rel=1e-3)
    variants = found["parts"]["variants-base-s512"]["results"]
    assert list(variants) == list(FEW_VARIANTS)
    assert [result["micro_batch"]["sequences"] for result in (full, *variants.values())] == [2, 1, 1]


def test_the_table_has_a_row_for_everything(measured: tuple[Path, dict[str, Any]]) -> None:
    lines = (measured[0] / "bench.md").read_text().splitlines()
    speeds = [line for line in lines if line.startswith("| base | s")]
    assert len(speeds) == 8
    assert [line.count("%") for line in speeds] == [2, 1, *[2] * 6]  # of the peak, and ours of the goal
    assert any(line.startswith("Against the CPU in fp32, fp32: ") and "within rounding" in line for line in lines)
    assert not any("failed" in line for line in lines)
    assert lines[-1].startswith("Seconds: correctness ")
    assert "| waits | 0.0 | at most 1 |" in lines and "| pageable copies | 0.0 | 0 |" in lines
    assert any(line.startswith("| 12 heads of 64 |") for line in lines)


def test_fine_tuning_stands_beside_its_goal() -> None:
    row = {"median_ms": 70.0, "tokens_per_second": 9, "albert_is_faster": 2.5}
    works = {"glue": {"variants": {"albert": row, "transformers": row}}}
    found = {"device": "a GPU", "data": None, "versions": {"torch": "2"}}
    parts = {"fine-tuning": {"fine_tuning": {"works": works}}}
    lines = gpu.text({"conditions": found, "parts": parts}, console.format_markdown_table).splitlines()
    assert lines[-4:-2] == ["| albert | 70.0 | 9 | 65 ms |  |", "| transformers | 70.0 | 9 |  | 2.50x |"]


def test_a_profile_counts_what_a_step_asks_for(measured: tuple[Path, dict[str, Any]]) -> None:
    """On a CPU torch's own operations stand for kernels."""
    found = measured[1]["parts"]["profile-base-s512"]["profile"]
    assert found["launches"] > 100 and 0 < found["busy"] <= 1 and found["waits"] == found["pageable_copies"] == 0
    times = list(found["kernels_ms"].values())
    assert times == sorted(times, reverse=True) and sum(times) < 1.1 * found["ms"]
    assert any("mm" in name for name in found["kernels_ms"])
    alone = measured[1]["parts"]["attention"]["attention"]["16 heads of 128"]
    assert alone["efficient, padded"] is not None and isinstance(alone["flash 3"], str)


def test_other_conditions_and_unknown_parts_are_refused(measured: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    refused = albert("bench", "gpu", "--out", measured[0], *TINY, "--alone", expect=2).err
    assert "alone: False -> True" in refused
    assert (
        ", variants-base-s512"
        in albert("bench", "gpu", "--out", tmp_path / "new", "--part", "fp9", *TINY, expect=2).err
    )
    wrong = albert("bench", "gpu", "--out", tmp_path / "new", *TINY, "-s", "model.hiden_size=3", expect=2).err
    assert "hiden_size" in wrong and not (tmp_path / "new").exists()


def test_a_part_that_fails_is_noted_and_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(name: str, options: pretrain.PretrainBenchOptions) -> dict[str, Any]:
        raise RuntimeError("CUDA error: an illegal memory access\nwith many lines")

    call = ("bench", "gpu", "--out", tmp_path, "--part", "base-s128", *TINY)
    with monkeypatch.context() as patch:
        patch.setattr(pretrain, "run", broken)
        said = albert(*call, expect=1).err
    assert "base-s128 (CUDA error: an illegal memory access)" in said
    assert "base-s128: failed: CUDA error" in (tmp_path / "bench.md").read_text()
    assert "failed" not in albert(*call).out


def test_data_of_another_vocabulary_are_refused_before_anything_is_measured(tiny_data: Path, tmp_path: Path) -> None:
    said = albert("bench", "gpu", "--out", tmp_path / "new", "--data", tiny_data, *TINY, expect=2).err
    assert "model.vocab_size is 200" in said and not (tmp_path / "new").exists()


def test_a_part_begins_when_what_the_one_before_held_is_gone() -> None:
    class Model:
        own: Any

    model = Model()
    model.own, gone = model, weakref.ref(model)  # a cycle, as models and their steps are
    del model
    assert gpu._attempted(lambda: {"gone": gone() is None}) == {"gone": True}


def test_models_to_try_are_made_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host the first values of some three hundred models take minutes."""
    made = []

    def noted(config: Any) -> Any:
        made.append(torch.empty(0).device.type)
        raise torch.OutOfMemoryError

    monkeypatch.setattr(memory, "PretrainingModel", noted)
    assert not memory._try_batch(PRESETS["albert-base"], 8, "fp32", torch.device("meta"), 1)
    assert made == ["meta"]


def test_a_bench_has_one_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would hold the moments twice, 1.8 GB of xxlarge's."""
    made = list[Lamb]()
    plain = Lamb.__init__

    def noted(self: Lamb, *given: Any, **options: Any) -> None:
        made.append(self)
        plain(self, *given, **options)

    monkeypatch.setattr(Lamb, "__init__", noted)
    shape = ("train.precision=fp32", *(f"model.{value}" for value in (*SMALL, "vocab_size=200")))
    pretrain.run("pretrain/albert-base", pretrain.PretrainBenchOptions(None, shape, 1, 1, device="cpu"))
    assert len(made) == 1


def test_a_wrong_gradient_ends_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(block, "_add_and_norm", _wrong_in_bf16(block._add_and_norm))
    call = ("bench", "gpu", "--out", tmp_path, *("train.precision=bf16" if w == FEW[-1] else w for w in TINY))
    said = albert(*call, expect=1).err
    assert "does not compute what the CPU does" in said
    assert list(json.loads((tmp_path / "bench.json").read_text())["parts"]) == ["correctness"]
    assert "bf16: loss" in (tmp_path / "bench.md").read_text() and "NOT" in (tmp_path / "bench.md").read_text()
    again = json.loads((tmp_path / "bench.json").read_text())
    albert(*call, expect=1)
    assert list(json.loads((tmp_path / "bench.json").read_text())["parts"]) == list(again["parts"]), "still"


def test_the_device_that_is_chosen_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is compiled depends on it."""
    monkeypatch.setattr(gpu, "PARTS", {"seen": lambda options: {"device": options.device}})
    monkeypatch.setattr(gpu, "choose_device", lambda name: torch.device("cpu"))
    found = gpu.run(tmp_path, [], gpu.GpuBenchOptions(device="auto"))
    assert found["parts"]["seen"]["device"] == "cpu"


def _wrong_in_bf16(right: Any) -> Any:
    """A block that computes something else where its products are in bf16."""

    def add_and_norm(*arguments: Any) -> Any:
        return right(*arguments) * (1.5 if torch.is_autocast_enabled("cpu") else 1.0)

    return add_and_norm
