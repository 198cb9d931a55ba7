"""Tests of `benchmarks.sharing`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from albert_cli.counting import costs
from albert_cli.counting.paper import PAPER_MODELS
from albert_cli.model.config import PRESETS, ModelConfig
from albert_cli.training import capacity
from benchmarks import sharing
from benchmarks.sharing import SharingResult, compute_speedups, format_result
from tests.helpers.benchmarks import run_benchmark

# Columns of the tables with the paper's speedups, after the column with the models' names
TRAINING = 0
PAPER = 1
BY_FLOPS = 2
INFERENCE = 3
TABLE_LINES = 2 + len(PAPER_MODELS)  # the headings, the rule below them, and a row for each model


def tiny_config(hidden_size: int, embedding_size: int, *, is_shared: bool) -> ModelConfig:
    return ModelConfig(
        vocab_size=50,
        embedding_size=embedding_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=2,
        sharing="all" if is_shared else "none",
    )


def test_command_measures_each_shape_once_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {
        "albert-base": tiny_config(16, 8, is_shared=True),
        "bert-base": tiny_config(16, 16, is_shared=False),
    }
    monkeypatch.setattr(sharing, "PRESETS", PRESETS | small)
    options = ("--out", tmp_path, "--rounds", 1, "--device", "cpu")
    values = json.loads(run_benchmark(sharing.app, *options, "--tokens", 32, "--json").out)
    result = SharingResult(**values)
    sizes = {(n, b) for n in sharing.LENGTHS for b in sharing.BATCHES if n * b <= 32}
    assert result.milliseconds.keys() == {f"{kind} {n} {b}" for kind in sharing.PASSES for n, b in sizes}
    albert_ms, bert_ms = result.milliseconds["training 16 1"]
    assert compute_speedups(result, "training")[16][1] == bert_ms / albert_ms
    assert "inference: tokens per sequence" in format_result(result)
    assert (tmp_path / "speed.svg").read_text().count("<svg") == 1
    assert "| training: tokens per sequence |" in (tmp_path / "bench.md").read_text()
    more = json.loads(run_benchmark(sharing.app, *options, "--tokens", 64, "--json").out)
    assert more["milliseconds"].items() > result.milliseconds.items()
    rejected = run_benchmark(sharing.app, *options, "--tokens", 32, "--precision", "bf16", expect=2)
    assert "measured under other conditions" in rejected.err


@pytest.mark.parametrize(
    ("names", "message"), [(("albert-base", "mini/docs"), "mini/docs: no preset"), (("albert-base",), "or paper")]
)
def test_unknown_preset_or_single_model_is_rejected(names: tuple[str, ...], message: str, tmp_path: Path) -> None:
    assert message in run_benchmark(sharing.app, *names, "-o", tmp_path, expect=2).err


def test_command_prints_the_papers_speedup_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    widths = {"base": 16, "large": 32, "xlarge": 64, "xxlarge": 64}
    presets = {}
    for name in PAPER_MODELS:
        width = widths[name.split("-")[1]]
        is_bert = name.startswith("bert")
        presets[name] = tiny_config(width, width if is_bert else 8, is_shared=not is_bert)
    monkeypatch.setattr(sharing, "PRESETS", presets)
    text = run_benchmark(sharing.app, "paper", "--out", tmp_path, "--rounds", 1, "--tokens", 256, "--device", "cpu").out
    milliseconds = json.loads((tmp_path / "bench.json").read_text())["measured"]
    assert {key: len(times) for key, times in milliseconds.items()} == {"training 128 2": 7, "inference 128 1": 7}
    lines = [line.strip("|").split("|") for line in (tmp_path / "bench.md").read_text().splitlines() if "|" in line]
    rows = [[cell.strip() for cell in line] for line in lines]
    starts = [
        next(i for i, row in enumerate(rows) if row[0] == f"speed, {base} = 1")
        for base in ("bert-large", "bert-xlarge")
    ]
    to_large, to_xlarge = ({row[0]: row[1:] for row in rows[start : start + TABLE_LINES]} for start in starts)
    training = dict(zip(PAPER_MODELS, milliseconds["training 128 2"], strict=True))
    for name in PAPER_MODELS:
        assert float(to_large[name][TRAINING]) == pytest.approx(training["bert-large"] / training[name], abs=0.006)
        assert float(to_xlarge[name][TRAINING]) == pytest.approx(training["bert-xlarge"] / training[name], abs=0.006)
    assert to_large["bert-large"][TRAINING] == "1.00"
    assert to_xlarge["bert-xlarge"][INFERENCE] == "1.00"
    paper_to_large = [to_large[name][PAPER] for name in ("bert-base", "bert-xlarge", "albert-base")]
    assert paper_to_large == ["4.70", "–", "5.60"]
    assert to_xlarge["bert-base"][PAPER] == "17.70"
    assert to_xlarge["albert-xxlarge"][PAPER] == "1.20"
    assert float(to_xlarge["albert-xxlarge"][BY_FLOPS]) == pytest.approx(1, abs=0.3)
    assert "disadvantage of the large BERTs" in " ".join(text.split())


def test_paper_speedups_exceed_those_of_flops() -> None:
    assert all(len(published) == len(PAPER_MODELS) for published in sharing.PAPER_SPEEDUPS.values())
    for base, published in sharing.PAPER_SPEEDUPS.items():
        assert published[PAPER_MODELS.index(base)] == 1
    by_flops = costs.training_flops(PRESETS["bert-large"], 512) / costs.training_flops(PRESETS["albert-large"], 512)
    assert by_flops == pytest.approx(1, abs=0.05)
    measured = sharing.PAPER_SPEEDUPS["bert-large"][PAPER_MODELS.index("albert-large")]
    assert measured is not None and measured > by_flops  # 1.7, because it includes communication and memory


def test_models_that_do_not_fit_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "available_memory", lambda device: 3 * 10**9)
    rejected = run_benchmark(sharing.app, "paper", "--out", tmp_path / "out", "--device", "cpu", expect=2)
    assert "bert-xlarge needs 12 GB of memory; 3 GB available" in rejected.err
    assert not (tmp_path / "out").exists()
