"""The verbs: parse and dispatch.

Nothing heavy is imported here; each verb imports what it needs when it runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from albert_cli import __version__, console
from albert_cli.command import verb
from albert_cli.errors import ConfigError

EPILOGUE = (
    "Exit codes: 0 done, 1 bug, 2 usage or configuration, 3 bad input, 4 checkpoint or integrity, "
    "5 diverged, 6 output directory in use, 75 interrupted and saved."
)
app = typer.Typer(
    name="albert",
    help="From raw text to a scored, shareable ALBERT encoder.",
    epilog=EPILOGUE,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
recipes_app = typer.Typer(help="List, show, copy and validate recipes.", no_args_is_help=True)
app.add_typer(recipes_app, name="recipes")

# ---------------------------------------------------------------- what verbs share

Out = Annotated[Path, typer.Option("--out", "-o", help="Directory to write.")]
Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Files, folders or globs of .txt and .jsonl (also .gz, .xz); hf:NAME[:CONFIG[:SPLIT]]; "
        "docs: for the documentation installed on this machine.",
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Option("-s", "--set", metavar="SECTION.KEY=VALUE", help="Change a recipe's value.")
]
Device = Annotated[Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="Where the model runs.")]
BadBytes = Annotated[
    Literal["refuse", "replace"], typer.Option("--on-bad-bytes", help="Invalid UTF-8: stop and say where, or replace.")
]
TextField = Annotated[str, typer.Option(help="Field of a JSON line, or column of a Hub data set, with the text.")]
Language = Annotated[str, typer.Option(help="Language code for splitting sentences.")]
CheckpointName = Annotated[
    str, typer.Option("--checkpoint", help="A checkpoint directory, a run (its newest step), or a Hub id.")
]
TaskData = Annotated[str | None, typer.Option("--data", help="Folder with the task's files, or hf:NAME.")]


def _file(path: Path | None) -> Path | None:
    """A path that is to become a file; raises `ConfigError` when a directory is there."""
    if path is not None and path.is_dir():
        raise ConfigError(f"--out {path}: is a directory", "name a file in it")
    return path


def _version(wanted: bool) -> None:
    if wanted:
        print(f"albert {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """From raw text to a scored, shareable ALBERT encoder."""


# ---------------------------------------------------------------- text and data


@verb(app)
def vocab(
    sources: Sources,
    out: Out,
    size: Annotated[int, typer.Option(help="Number of pieces.")] = 30_000,
    sample_size: Annotated[int, typer.Option(help="Sentences to train on, drawn uniformly from all text.")] = 2_000_000,
    character_coverage: Annotated[
        float, typer.Option(help="Share of the text's characters that get a piece; the rarest become unknown.")
    ] = 0.99995,
    lowercase: Annotated[bool, typer.Option(help="Lower-case the text.")] = True,
    strip_accents: Annotated[bool, typer.Option(help="Drop accents and other combining marks.")] = True,
    normal_form: Annotated[Literal["NFKD", "NFKC", "NFC", "none"], typer.Option(help="Unicode normal form.")] = "NFKD",
    language: Language = "en",
    text_field: TextField = "text",
    on_bad_bytes: BadBytes = "refuse",
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
) -> None:
    """Build a SentencePiece vocabulary.

    Example: albert vocab wiki.jsonl books/ --size 30000 --out vocabulary
    """
    from albert_cli.text import vocabulary
    from albert_cli.text.clean import Cleaning

    report = vocabulary.build(
        sources, out, size, Cleaning(lowercase, strip_accents, normal_form), sample_size=sample_size,
        character_coverage=character_coverage, seed=seed, language=language, on_bad_bytes=on_bad_bytes,
        text_field=text_field,
    )  # fmt: skip
    console.emit(report, vocabulary.summary(report))


@verb(app)
def data(
    sources: Sources,
    vocab: Annotated[Path, typer.Option("--vocab", help="Vocabulary directory.")],
    out: Out,
    holdout: Annotated[float, typer.Option(help="Share of the documents held out for evaluation.")] = 0.01,
    workers: Annotated[int, typer.Option(help="Processes; 0: one a core.")] = 0,
    language: Language = "en",
    text_field: TextField = "text",
    on_bad_bytes: BadBytes = "refuse",
) -> None:
    """Tokenise text once, into shards that pretraining draws its examples from.

    Example: albert data wiki.jsonl books/ --vocab vocabulary --out data
    """
    from albert_cli.data import build
    from albert_cli.data.tokenise import BuildSettings

    settings = BuildSettings(holdout=holdout, language=language, on_bad_bytes=on_bad_bytes, text_field=text_field)
    facts = build.build(sources, vocab, out, settings, workers)
    console.emit(facts, build.summary(facts))


@verb(app, name="inspect")
def inspect_directory(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Any directory that albert wrote.")],
    verify: Annotated[bool, typer.Option("--verify", help="Re-hash every file.")] = False,
    examples: Annotated[int, typer.Option(min=0, help="Training examples to decode (data directories).")] = 0,
    seed: Annotated[int | None, typer.Option(help="Seed of the examples; default: the recipe's, or 0.")] = None,
    step: Annotated[int, typer.Option(min=0, help="Training step of the examples.")] = 0,
    recipe: Annotated[
        str | None, typer.Option(help="Show what this pretraining recipe draws: its batches and lengths.")
    ] = None,
) -> None:
    """Show what a vocabulary, data, run or result directory holds.

    Example: albert inspect data --examples 3
    """
    from albert_cli.data.inspect import describe
    from albert_cli.training.settings import TrainSettings

    train, settings = TrainSettings(), None
    if recipe is not None:
        from albert_cli.text.vocabulary import Vocabulary
        from albert_cli.training.pretrain import resolve

        resolved = resolve(recipe, [], Vocabulary.load(directory))
        train, settings = resolved.train, resolved.data
    seed = train.seed if seed is None else seed
    console.emit(*describe(directory, examples, seed, step, verify, settings, train.batch_size))


# ---------------------------------------------------------------- training


@verb(app)
def pretrain(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or file; `albert recipes list` names them.")],
    data: Annotated[Path, typer.Option(help="Data directory.")],
    out: Out,
    overrides: Overrides = None,
    resume: Annotated[
        Literal["auto", "must", "never"], typer.Option(help="Whether to go on with what is in --out.")
    ] = "auto",
    max_time: Annotated[
        str | None, typer.Option(help="Measure the speed, then train as many steps as fit, e.g. 25m.")
    ] = None,
    nproc: Annotated[int, typer.Option(help="Start this many processes here through torchrun.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and print the plan.")] = False,
    show_config: Annotated[bool, typer.Option("--show-config", help="Print the resolved recipe.")] = False,
    device: Device = "auto",
) -> None:
    """Pretrain an encoder; the same command again resumes.

    Example: albert pretrain mini/wiki --data data --out run --max-time 10m
    """
    from albert_cli import distributed

    if nproc < 1:
        raise ConfigError(f"--nproc {nproc}: at least one process is needed", "leave it out for one")
    if nproc > 1 and distributed.world_size() == 1:
        raise typer.Exit(distributed.launch(nproc, sys.argv[1:]))
    from albert_cli.training import pretrain as verb_module

    if show_config:
        resolved = verb_module.show_config(recipe, data, overrides or [])
        console.emit(*resolved)
        return
    result = verb_module.pretrain(
        recipe, data, out, overrides or [], resume=resume, max_time=max_time, dry_run=dry_run, device=device
    )
    console.emit(result, verb_module.plan_text(result) if dry_run else verb_module.summary_text(result))


@verb(app)
def finetune(
    task: Annotated[str, typer.Argument(help="cola sst2 mrpc stsb qqp mnli qnli rte wnli, table, or a recipe file.")],
    checkpoint: CheckpointName,
    out: Out,
    data: TaskData = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the classifier, the order and dropout; default: the recipe's.")
    ] = None,
    overrides: Overrides = None,
    resume: Annotated[
        Literal["auto", "must", "never"], typer.Option(help="Whether to go on with what is in --out.")
    ] = "auto",
    device: Device = "auto",
) -> None:
    """Fine-tune a checkpoint on one task, one seed; the best checkpoint on dev is kept.

    Example: albert finetune mrpc --checkpoint run --data glue --out mrpc
    """
    from albert_cli.evaluation import runs
    from albert_cli.training import finetune as verb_module

    prepared = verb_module.prepare(task, checkpoint, data, overrides or [], device)
    result = verb_module.finetune(prepared, out, seed, resume)
    console.emit(result, runs.run_text(result, out))


@verb(app, name="eval")
def evaluate(
    task: Annotated[str, typer.Argument(help="A task as for finetune, or glue for all of its tasks.")],
    checkpoint: CheckpointName,
    out: Out,
    data: TaskData = None,
    runs: Annotated[int, typer.Option(help="Seeds to fine-tune; the median is reported.")] = 5,
    overrides: Overrides = None,
    device: Device = "auto",
) -> None:
    """Score a checkpoint: the median of k seeded fine-tunings, or a task checkpoint as it is.

    Example: albert eval glue --checkpoint run --data glue --runs 5 --out scores
    """
    from albert_cli.evaluation import runs as verb_module

    result = verb_module.evaluate(task, checkpoint, data, out, runs, overrides or [], device)
    console.emit(result, verb_module.text(result))


@verb(app)
def predict(
    checkpoint: Annotated[str, typer.Argument(help="A task checkpoint.")],
    input_file: Annotated[
        str, typer.Option("--input", help="A file of lines (two texts: tab between) or .jsonl; - is stdin.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; stdout otherwise. --json needs it.")
    ] = None,
    on_bad_bytes: BadBytes = "refuse",
    device: Device = "auto",
) -> None:
    """Label text with a task checkpoint: text in, JSON lines out.

    Example: albert predict mrpc --input pairs.tsv --out labels.jsonl
    """
    if console.settings.json and out is None:
        raise ConfigError("--json prints one object, and predictions are a JSON line each", "give --out FILE for them")
    from albert_cli.evaluation import predict as verb_module

    result = verb_module.predict(checkpoint, input_file, _file(out), device, on_bad_bytes)
    if result is not None:
        console.emit(result, f"{result['out']}: {result['lines']:,} lines, {result['lines_per_second']:,.0f} a second")


# ---------------------------------------------------------------- looking


@verb(app)
def params(
    names: Annotated[list[str] | None, typer.Argument(metavar="[PRESET|RECIPE|CHECKPOINT]...")] = None,
) -> None:
    """Count parameters by part, exactly, beside the paper's figures.

    Example: albert params albert-base albert-xxlarge
    """
    from albert_cli.model.params import describe

    console.emit(*describe(names or []))


@verb(app)
def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Runs and results, at any depth.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")],
) -> None:
    """Write one self-contained HTML page from any result directories.

    Example: albert report run scores --out report.html
    """
    from albert_cli.evaluation.report import build

    _file(out)
    result = build(directories, out)
    console.emit(result, f"{out}: tasks {len(result['tasks'])}, pretraining runs {len(result['pretraining'])}")


@verb(app)
def quickstart(
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory to write.")] = Path("quickstart"),
    smoke: Annotated[bool, typer.Option("--smoke", help="All of it, smaller, in under a minute.")] = False,
    device: Device = "auto",
) -> None:
    """The whole road in minutes, on the documentation installed on this machine.

    Example: albert quickstart --out quickstart
    """
    from albert_cli import quickstart as verb_module

    result = verb_module.run(out, smoke=smoke, device=device)
    console.emit(result, verb_module.text(result))


@verb(app)
def doctor() -> None:
    """Show versions, devices, memory, and what each missing extra would bring.

    Example: albert doctor
    """
    from albert_cli.doctor import describe

    console.emit(*describe())


# ---------------------------------------------------------------- recipes


@verb(recipes_app, name="list")
def recipes_list() -> None:
    """Name the recipes that are shipped, a line each.

    Example: albert recipes list
    """
    from albert_cli import config

    found = {name: config.first_comment(path) for name, path in config.shipped_recipes().items()}
    width = max(map(len, found))
    console.emit(found, "\n".join(f"{name:<{width}}  {about}" for name, about in found.items()))


@verb(recipes_app, name="show")
def recipes_show(name: Annotated[str, typer.Argument(help="A recipe's name.")]) -> None:
    """Print a recipe's file.

    Example: albert recipes show mini/docs
    """
    from albert_cli import config

    console.emit(config.read_recipe(name), config.find_recipe(name).read_text(encoding="utf-8").rstrip())


@verb(recipes_app, name="copy")
def recipes_copy(
    name: Annotated[str, typer.Argument(help="A recipe's name.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; default: the name here.")] = None,
) -> None:
    """Copy a recipe out to edit it.

    Example: albert recipes copy mini/docs --out mine.toml
    """
    from albert_cli import config

    copied = config.copy_recipe(name, out)
    console.emit({"recipe": str(copied)}, str(copied))


@verb(recipes_app, name="validate")
def recipes_validate(file: Annotated[str, typer.Argument(metavar="FILE", help="A recipe's file or name.")]) -> None:
    """Check a recipe: every key, type and range.

    Example: albert recipes validate mine.toml
    """
    from albert_cli.training.recipes import validate

    console.emit(*validate(file))


def main() -> None:
    """The console script `albert`."""
    # Threads that wait for each other by spinning are ten times slower as soon as anything else runs on the same
    # cores. A short spin costs nothing on a quiet machine. torch's OpenMP reads this when it is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    app()
