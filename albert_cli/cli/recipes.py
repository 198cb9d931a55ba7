"""`albert recipes`: list, show and copy the shipped recipes, and check your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from albert_cli import console
from albert_cli.cli.app import command, recipes_app
from albert_cli.cli.options import AsJson, Debug, Quiet
from albert_cli.errors import BusyError


@command(recipes_app, name="list")
def recipes_list(as_json: AsJson = False, quiet: Quiet = False, debug: Debug = False) -> None:
    """List the shipped recipes, one per line.

    Example: albert recipes list
    """
    from albert_cli import config

    recipes = {name: path for name, path in config.shipped_recipes().items() if name != config.EXPERIMENT_DEFAULTS}
    descriptions = {name: config.read_description(path) for name, path in recipes.items()}
    width = max(map(len, descriptions))
    lines = [f"{name:<{width}}  {description}" for name, description in descriptions.items()]
    console.print_result(descriptions, "\n".join(lines))


@command(recipes_app, name="show")
def recipes_show(
    name: Annotated[str, typer.Argument(help="A recipe's name.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Print a recipe's file.

    Example: albert recipes show mini/docs
    """
    from albert_cli import config

    console.print_result(config.read_recipe(name), config.find_recipe(name).read_text(encoding="utf-8").rstrip())


@command(recipes_app, name="copy")
def recipes_copy(
    name: Annotated[str, typer.Argument(help="A recipe's name.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; default: the recipe's file name.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Copy a shipped recipe to a file that you can edit.

    Example: albert recipes copy mini/docs --out mine.toml
    """
    from albert_cli import config, store

    source = config.find_recipe(name)
    target = out or Path(source.name)
    if target.exists():
        raise BusyError(f"{target}: already exists", "choose another --out")
    store.write_bytes(target, source.read_bytes())
    console.print_result({"recipe": str(target)}, str(target))


@command(recipes_app, name="validate")
def recipes_validate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A recipe's file or name.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Check a recipe: every key, type and range, and that its sections fit together. Print it with its defaults.

    The printed recipe lacks the values that a run takes from its data or checkpoint: the vocabulary's size, or the
    shape in [model].

    Example: albert recipes validate mine.toml
    """
    from albert_cli import config

    # Three keys tell the kinds of recipe apart: `variants` is in an experiment, `task` in a recipe for fine-tuning, and
    # `expected` in a verification of published scores. A recipe without these keys is for pretraining.
    values = config.read_recipe(file)
    if "variants" in values:
        from albert_cli.experiments.stages import validate_experiment

        experiment_values, summary = validate_experiment(file)
        console.print_result(experiment_values, summary)
        return
    from albert_cli.evaluation.verify import VerifyRecipe
    from albert_cli.training.pretrain_recipe import validate_without_data
    from albert_cli.training.task_recipe import FinetuneRecipe

    if "task" in values:
        resolved = config.to_toml_values(config.load_recipe(FinetuneRecipe, file).with_derived_values())
    elif "expected" in values:
        resolved = config.to_toml_values(config.load_recipe(VerifyRecipe, file))
    else:
        resolved = validate_without_data(file)
    console.print_result(resolved, config.dump_toml(resolved).rstrip())
