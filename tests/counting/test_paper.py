"""Every shape of the paper in one line, beside the paper's figure, and the page that says so."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from albert_cli import config as recipes
from albert_cli.counting import shapes
from albert_cli.counting.paper import (
    PAPER_FIGURES,
    PAPER_MODELS,
    PAPER_SHAPES,
    PaperFigure,
    describe_paper,
    find_paper_figure,
    paper_count,
)
from albert_cli.model.config import PRESETS, ModelConfig
from tests.helpers.command import albert
from tests.helpers.paper_counts import count_three_ways

PAGE = Path(__file__).parents[2] / "docs" / "shapes.md"
NAMES = [name for names in PAPER_SHAPES.values() for name in names]


def test_shapes_page_equals_the_command_output() -> None:
    assert albert("params", "--paper", "--markdown").out == PAGE.read_text(encoding="utf-8")


def test_paper_shapes_cover_all_tables() -> None:
    configs = [shapes.find_shape(name).config for name in NAMES]
    depths = {c.num_hidden_layers for c in configs if c.hidden_size == 1024 and c.sharing == "all"}
    assert depths == {1, 3, 6, 12, 24, 48}
    assert {c.hidden_size for c in configs if c.num_hidden_layers == 3} == {1024, 2048, 4096, 6144}
    base = {(c.embedding_size, c.sharing) for c in configs if c.hidden_size == 768}
    assert base == set(itertools.product((64, 128, 256, 768), ("all", "attention", "ffn", "none")))
    assert all(c.intermediate_size == 4 * c.hidden_size for c in configs)


def test_paper_shapes_with_dropout_have_dropout() -> None:
    (names,) = (names for heading, names in PAPER_SHAPES.items() if "had dropout" in heading)
    assert names == ("albert-base-v1", "albert-large-v1", "albert-xlarge-v1")
    assert all(PRESETS[name].hidden_dropout_prob == 0.1 for name in names)


def test_paper_shape_equals_its_recipe_with_overrides() -> None:
    """`NAME:E=64,sharing=none` and `-s model.embedding_size=64 -s model.sharing=none` on the recipe are one shape."""
    for name in NAMES:
        plain, _, changes = name.partition(":")
        pairs = [change.partition("=") for change in changes.split(",") if change]
        recipe = f"pretrain/{plain.removesuffix('-v1')}"
        overrides = [f"model.{shapes.SYMBOLS.get(key, key)}={value}" for key, _, value in pairs]
        values = recipes.apply_overrides(recipes.read_recipe(recipe), overrides)
        read = ModelConfig.from_values(values["model"], recipe)
        assert count_three_ways(read) == count_three_ways(shapes.find_shape(name).config)
        assert read.blocks() == shapes.find_shape(name).config.blocks()


def test_paper_json_contains_every_shape() -> None:
    data = json.loads(albert("params", "--paper", "--json").out)
    assert [row["shape"] for row in data["shapes"]] == NAMES
    row = next(row for row in data["shapes"] if row["shape"] == "albert-base:E=128,sharing=ffn")
    assert (row["paper_count"], row["paper"]["figure"], row["paper"]["note"]) == (37_686_528, 38, "")


def test_paper_batches_are_at_most_ours() -> None:
    batches = json.loads(albert("params", "--paper", "--json").out)["largest_batch_at_12_gb"]
    largest = {(row["shape"], row["how"]): row["largest"] for row in batches}
    assert largest["bert-base", "published"] == [64, 32, 16, 14, 12, 6]
    assert largest["bert-large", "published"] == [12, 6, 2, 1, 0, 0]
    for (shape, how), ours in largest.items():
        assert ours == sorted(ours, reverse=True) and len(ours) == 6
        if how != "published":
            less = largest[shape, "published"] if shape.startswith("bert") else largest[shape.removeprefix("al"), how]
            assert all(a >= b for a, b in zip(ours, less, strict=True)), (shape, how)


def test_paper_text_states_each_reason_once() -> None:
    _, text = describe_paper()
    notes = [line for line in text.splitlines() if line.startswith("* ")]
    assert len(notes) == len(set(notes))
    assert [note for note in notes if note.startswith("* albert-xxlarge: ")]
    assert not [note for note in notes if note.startswith("* albert-xxlarge-v1: ")], "the same model"


@pytest.mark.parametrize(
    "shape", [shape for shape, (_, table) in PAPER_FIGURES.items() if table in ("Table 3", "Table 4")]
)
def test_paper_ablations_round_to_its_figures(shape: tuple[int, int, int, str]) -> None:
    config = shapes.find_shape(f"albert-base:E={shape[0]},sharing={shape[3]}").config
    assert find_paper_figure(config) == PaperFigure(*PAPER_FIGURES[shape], note="")
    assert round(paper_count(config) / 1e6) == PAPER_FIGURES[shape][0]


@pytest.mark.parametrize(("hidden", "millions"), [(1024, 18), (2048, 60), (4096, 225), (6144, 499)])
def test_paper_table_12_three_layer_rows_round_equal(hidden: int, millions: int) -> None:
    config = shapes.find_shape(f"albert-large:L=3,H={hidden},A={hidden // 64},F={4 * hidden}").config
    paper = find_paper_figure(config)
    assert paper is not None
    assert (paper.figure, paper.table) == (millions, "Table 11" if hidden == 1024 else "Table 12")
    # The paper's own figure needs a position table of width H, and is then met to the million.
    assert round((paper_count(config) + 512 * (hidden - 128)) / 1e6) == millions
    if hidden == 6144:
        assert count_three_ways(config) == (457_763_328, 495_518_208, 496_347_314)


def test_paper_shape_has_no_projection_at_equal_widths() -> None:
    assert find_paper_figure(shapes.find_shape("albert-base:E=768").config) == PaperFigure(31, "Table 3", note="")
    assert find_paper_figure(shapes.find_shape("albert-base:E=768,always_project=true").config) is None


def test_paper_differences_are_explained() -> None:
    figures = {name: find_paper_figure(PRESETS[name]) for name in PAPER_MODELS}
    notes = {name: paper.note for name, paper in figures.items() if paper is not None}
    assert {name for name, note in notes.items() if note} == {"bert-xlarge", "albert-xlarge", "albert-xxlarge"}
    assert "235M" in notes["albert-xxlarge"] and "222,595,584" in notes["albert-xxlarge"]
    assert "not reproducible" in notes["albert-xxlarge"]
