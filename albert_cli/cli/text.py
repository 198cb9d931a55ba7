"""Verbs on text: vocabulary, token shards, and looking into what was made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from albert_cli import console
from albert_cli.cli.app import app, verb
from albert_cli.cli.options import BadBytes, Language, LongLine, MaxLine, Out, Sources, TextField


@verb(app)
def vocab(
    sources: Sources,
    out: Out,
    size: Annotated[int, typer.Option(help="Number of pieces.")] = 30_000,
    sample_size: Annotated[
        int, typer.Option(help="Sentences to train on, drawn uniformly from all text; the paper: 10 million.")
    ] = 2_000_000,
    character_coverage: Annotated[
        float, typer.Option(help="Share of the text's characters that get a piece; the rarest become unknown.")
    ] = 0.99995,
    lowercase: Annotated[bool, typer.Option(help="Lower-case the text.")] = True,
    strip_accents: Annotated[bool, typer.Option(help="Drop accents and other combining marks.")] = True,
    normal_form: Annotated[
        Literal["NFKD", "NFKC", "NFC", "none"],
        typer.Option(help="Unicode normal form; text whose accents stay is composed in any case."),
    ] = "NFKD",
    language: Language = "en",
    text_field: TextField = "text",
    max_line: MaxLine = "64MiB",
    on_long_line: LongLine = "refuse",
    on_bad_bytes: BadBytes = "refuse",
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
) -> None:
    """Build a SentencePiece vocabulary.

    Example: albert vocab wiki.jsonl books/ --size 30000 --out vocabulary
    """
    from albert_cli.text import vocabulary
    from albert_cli.text.clean import Cleaning
    from albert_cli.text.lines import parse_size

    report = vocabulary.build(
        sources, out, size, Cleaning(lowercase, strip_accents, normal_form), sample_size=sample_size,
        character_coverage=character_coverage, seed=seed, language=language, on_bad_bytes=on_bad_bytes,
        text_field=text_field, max_line=parse_size(max_line), on_long_line=on_long_line,
    )  # fmt: skip
    console.emit(report, vocabulary.summary(report))


@verb(app)
def data(
    sources: Sources,
    vocab: Annotated[Path, typer.Option("--vocab", help="Vocabulary directory.")],
    out: Out,
    holdout: Annotated[float, typer.Option(help="Share of the documents held out for evaluation.")] = 0.01,
    dedup: Annotated[bool, typer.Option("--dedup", help="Keep one of documents with equal text.")] = False,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one a core.")] = 0,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="I/N|auto|merge",
            help="Do the I-th of N shares, counted from 0 (auto: as SLURM or Kubernetes says), and merge them last.",
        ),
    ] = None,
    language: Language = "en",
    text_field: TextField = "text",
    max_line: MaxLine = "64MiB",
    on_long_line: LongLine = "refuse",
    on_bad_bytes: BadBytes = "refuse",
) -> None:
    """Tokenise text once, into shards that pretraining draws its examples from.

    Example: albert data wiki.jsonl books/@2 --vocab vocabulary --out data
    """
    import os

    from albert_cli.data import build, plan
    from albert_cli.data.tokenise import BuildSettings
    from albert_cli.text.lines import ReadSettings, parse_size

    share = plan.parse_share(task, os.environ)
    read = ReadSettings(on_bad_bytes, text_field, parse_size(max_line), on_long_line)
    settings = BuildSettings(holdout=holdout, language=language, read=read, dedup=dedup)
    facts = build.build(sources, vocab, out, settings, workers, share)
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

    train, settings, first = TrainSettings(), None, None
    size = train.batch_size
    if recipe is not None:
        from albert_cli.text.vocabulary import Vocabulary
        from albert_cli.training.pretrain_recipe import resolve

        resolved = resolve(recipe, [], Vocabulary.load(directory).size)
        train, settings = resolved.train, resolved.data
        size, first = resolved.batches.size(step), resolved.batches.first(step)
    seed = train.seed if seed is None else seed
    console.emit(*describe(directory, examples, seed, step, verify, settings, size, first))
