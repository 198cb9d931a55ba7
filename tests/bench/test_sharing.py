"""ALBERT beside BERT by length and batch: every cell once, whatever ended the attempt before, and drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from albert_cli.bench import memory, sharing, speedup
from albert_cli.model.config import PRESETS, ModelConfig
from tests.command import albert

TINY = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def test_the_cells_are_measured_once_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {
        "albert-base": ModelConfig(**TINY, embedding_size=8),  # type: ignore[arg-type]
        "bert-base": ModelConfig(**TINY, embedding_size=16, sharing="none"),  # type: ignore[arg-type]
    }
    monkeypatch.setattr(speedup, "PRESETS", PRESETS | small)
    call = ("bench", "sharing", "--out", tmp_path, "--rounds", 1, "--tokens", 32, "--device", "cpu", "--json")
    found = json.loads(albert(*call).out)
    sizes = {(n, b) for n in sharing.LENGTHS for b in sharing.BATCHES if n * b <= 32}
    assert found["cells"].keys() == {f"{what} {n} {b}" for what in sharing.WHAT for n, b in sizes}
    assert (
        sharing.times(found, "training")[16][1]
        == found["cells"]["training 16 1"][1] / found["cells"]["training 16 1"][0]
    )
    page = Path(found["report"]).read_text(encoding="utf-8")
    assert page.count("<svg") == 2 and "as fast as bert-base" in page
    more = json.loads(albert(*("64" if word == 32 else word for word in call)).out)
    assert more["cells"].items() > found["cells"].items(), "what was measured stays"
    assert "measured under other conditions" in albert(*call[:-1], "--precision", "bf16", expect=2).err


@pytest.mark.parametrize("guess", [0, 1, 7, 40, 1000])
@pytest.mark.parametrize("most", [0, 1, 2, 31, 64, 700])
def test_the_largest_batch_is_found_by_trying(most: int, guess: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= most

    found = memory.largest(fits, guess)
    assert most - max(0, most // 16) <= found <= most and len(tried) < 20


def test_what_is_no_preset_is_refused(tmp_path: Path) -> None:
    assert (
        "mini/docs: no preset" in albert("bench", "sharing", "albert-base", "mini/docs", "-o", tmp_path, expect=2).err
    )
