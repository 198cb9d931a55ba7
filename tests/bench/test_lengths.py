"""The bench of lengths: every form, its memory, and where sparse attention begins to be faster."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from transformers import BigBirdModel

from albert_cli.bench import lengths
from albert_cli.counting import shapes
from tests.command import albert


def test_every_form_is_measured_in_a_process_of_its_own() -> None:
    call = ["bench", "lengths", "mini/docs", "--layers", "1", "--length", "1024", "--device", "cpu"]
    found = json.loads(albert(*call, "--json").out)
    assert list(found["forms"]) == list(lengths.FORMS) and found["layers"] == 1
    for form, by_length in found["forms"].items():
        assert list(by_length) == ["1024"], form
        assert by_length["1024"]["seconds"] > 0 and by_length["1024"]["bytes"] > 0, by_length
    said = lengths.text(found)
    assert all(form in said for form in lengths.FORMS) and "window: " in said


def test_a_failure_leaves_its_place_empty_and_the_others_stand() -> None:
    forms = {
        "full": {"512": {"seconds": 1.0, "bytes": 10**8}, "1024": {"error": "out of memory"}},
        "window": {"512": {"seconds": 2.0, "bytes": 10**8}, "1024": {"seconds": 4.0, "bytes": 2 * 10**8}},
        "block": {"512": {"seconds": 0.5, "bytes": 10**8}, "1024": {"seconds": 1.0, "bytes": 2 * 10**8}},
    }
    common = {"model": "m", "layers": 1, "device": "cpu", "threads": 1, "precision": "fp32"}
    said = lengths.text({**common, "attention_window": 8, "attention_block": 8, "forms": forms})
    assert "–" in said and "window: never faster than full (0.5x at 512)" in said
    assert "block: faster than full attention from 512 tokens on (2.0x at 512)" in said


def test_big_bird_is_measured_with_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass on few tokens makes it attend fully from then on."""
    given_up = []
    monkeypatch.setattr(BigBirdModel, "set_attention_type", lambda self, kind: given_up.append(kind))
    config = replace(shapes.find_shape("mini/docs").config, max_position_embeddings=1024, num_hidden_layers=1)
    lengths._measured(config, "big bird", 1024, 1, "fp32", "cpu", 1)
    assert not given_up


@pytest.mark.parametrize("form", ["sparse", ""])
def test_an_unknown_form_is_refused(form: str) -> None:
    assert "choose from full" in albert("bench", "lengths", "mini/docs", "--form", form, expect=2).err
