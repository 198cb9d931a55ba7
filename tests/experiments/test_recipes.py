"""Every experiment that is shipped: read, checked, planned at all four scales."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from albert_cli.errors import ConfigError
from albert_cli.experiments import recipe
from albert_cli.experiments.budget import describe
from albert_cli.experiments.plan import Request, make
from tests.command import albert

PLANNED = [(name, scale) for name in recipe.names() for scale in recipe.SCALES]


def test_list_names_every_experiment_with_a_sentence() -> None:
    said: dict[str, str] = json.loads(albert("reproduce", "--list", "--json").out)
    assert list(said) == recipe.names()
    assert {"sizes", "sentence-loss", "sharing", "similarity"} <= said.keys()
    lines = albert("reproduce", "--list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(said)
    assert all(len(about) > 20 for about in said.values())


@pytest.mark.parametrize("name", recipe.names())
def test_validate_takes_an_experiment_too(name: str) -> None:
    assert "claims" in albert("recipes", "validate", f"experiments/{name}").out


@pytest.mark.parametrize(("name", "scale"), PLANNED)
def test_plans_at_every_scale(name: str, scale: recipe.ScaleName) -> None:
    plan = make(recipe.load(name), Request(scale, Path("out"), dry_run=True))
    data, text = describe(plan)
    assert plan.variants and f"scale {scale}" in text
    assert {run.variant for run in plan.runs} == set(plan.variants)
    seen: set[str] = set()
    for stage in plan.stages.values():
        assert set(stage.needs) <= seen, "a stage comes after what it needs"
        seen.add(stage.id)
    assert len(data["commands"]) == len(plan.stages)
    if not plan.experiment.is_counted:
        assert data["total"]["device_hours"] > 0


@pytest.mark.parametrize("name", recipe.names())
def test_paper_tables_have_a_cell_a_column_and_name_variants(name: str) -> None:
    experiment = recipe.load(name)
    for table in experiment.tables:
        assert all(len(cells) == len(table.columns) for cells in table.rows.values()), table.title
    assert experiment.claims and all(claim.margin and claim.source for claim in experiment.claims)


def test_a_name_that_is_nearly_right_gets_a_suggestion() -> None:
    assert "did you mean 'sharing'?" in albert("reproduce", "shraing", "--dry-run", expect=2).err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"claims": [{"says": "x", "source": "y", "margin": "z", "conditions": []}]}, "without conditions"),
        (
            {
                "claims": [
                    {
                        "says": "x",
                        "source": "y",
                        "margin": "z",
                        "conditions": [{"value": "nobody.mlm_loss", "must": "above", "bound": 1}],
                    }
                ]
            },
            "nobody.mlm_loss",
        ),
        ({"scales": {"mini": {"about": "", "base": "mini/docs"}}}, "scales are"),
        ({"variants": {"a": {"title": "A", "after": "b"}}}, "names no variant"),
        ({"variants": {"a": {"titel": "A"}}}, "titel"),
        ({"clames": []}, "did you mean 'claims'?"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(change: dict[str, object], said: str) -> None:
    scale = {"about": "", "base": "mini/docs"}
    values = {"title": "T", "source": "S", "scales": dict.fromkeys(recipe.SCALES, scale)}
    with pytest.raises(ConfigError) as error:
        recipe.parse({**values, "variants": {"a": {"title": "A"}}, **change}, "mine")
    assert said in f"{error.value} {error.value.hint}"
