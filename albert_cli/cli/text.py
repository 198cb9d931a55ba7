"""The commands `vocab` and `data`, which prepare text, and `inspect`, which shows the contents of a directory."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from albert_cli import console
from albert_cli.cli.app import app, command
from albert_cli.cli.options import (
    ArrayTask,
    AsJson,
    BadBytes,
    Cluster,
    Debug,
    KeepZwnj,
    Language,
    LongLine,
    Lowercase,
    MaxLine,
    Out,
    Quiet,
    Sources,
    StripAccents,
    TextField,
    VocabularyName,
    Workers,
    find_vocabulary,
)

FileFormatOption = Annotated[
    Literal["auto", "text", "jsonl", "json", "csv", "tsv", "parquet", "arrow", "wiki"],
    typer.Option(
        "--format",
        help="Format of the files and of stdin. auto: from the file's name; wiki: the output of WikiExtractor.",
    ),
]
DocumentOption = Annotated[
    Literal["blank-line", "line", "file"], typer.Option("--document", help="Where a document of plain text ends.")
]
SampleSize = Annotated[
    int, typer.Option(help="Sentences to train on, sampled uniformly from all text; the paper: 10 million.")
]
CharacterCoverage = Annotated[
    float, typer.Option(help="Fraction of the text's characters that get a token; the rarest become unknown.")
]
NormalForm = Annotated[
    Literal["NFKD", "NFKC", "NFC", "none"],
    typer.Option(help="Unicode normal form. With --no-strip-accents, NFKD acts as NFKC, and none as NFC."),
]
Symbols = Annotated[
    Path | None,
    typer.Option(
        help="File with one symbol per line; each symbol becomes one token. "
        "A symbol is split only if pieces that overlap it score better."
    ),
]
JoinLines = Annotated[
    bool, typer.Option("--join-lines", help="Join wrapped lines: the lines up to a blank one are a paragraph.")
]


@command(app, stage="Prepare text")
def vocab(
    sources: Sources,
    out: Out,
    size: Annotated[int, typer.Option(help="Number of tokens in the vocabulary.")] = 30_000,
    sample_size: SampleSize = 2_000_000,
    character_coverage: CharacterCoverage = 0.99995,
    lowercase: Lowercase = True,
    strip_accents: StripAccents = True,
    normal_form: NormalForm = "NFKD",
    keep_zwnj: KeepZwnj = False,
    symbols: Symbols = None,
    byte_fallback: Annotated[
        bool, typer.Option("--byte-fallback", help="Encode characters without a token as bytes, not as unknown.")
    ] = False,
    language: Language = "en",
    text_field: TextField = "text",
    max_line: MaxLine = "64MiB",
    on_long_line: LongLine = "refuse",
    on_bad_bytes: BadBytes = "refuse",
    file_format: FileFormatOption = "auto",
    document: DocumentOption = "blank-line",
    join_lines: JoinLines = False,
    workers: Workers = 0,
    cluster: Cluster = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Build a SentencePiece vocabulary.

    Example: albert vocab wiki.jsonl books/ --size 30000 --out vocabulary
    """
    from albert_cli.executor import use_cluster
    from albert_cli.text import build_vocabulary
    from albert_cli.text.clean import Cleaning
    from albert_cli.text.languages import warn_about_language
    from albert_cli.text.read_settings import ReadSettings, parse_size

    read = ReadSettings(on_bad_bytes, text_field, parse_size(max_line), on_long_line, file_format, document, join_lines)
    symbol_texts = () if symbols is None else build_vocabulary.read_symbols(symbols, read)
    settings = build_vocabulary.VocabularySettings(
        size=size,
        cleaning=Cleaning(lowercase, strip_accents, normal_form),
        sample_size=sample_size,
        character_coverage=character_coverage,
        seed=seed,
        language=language,
        keep_zwnj=keep_zwnj,
        symbols=symbol_texts,
        byte_fallback=byte_fallback,
        read=read,
    )
    warn_about_language(language)
    with use_cluster(cluster):
        built = build_vocabulary.build_vocabulary(sources, out, settings, workers)
    console.print_result(asdict(built), build_vocabulary.format_summary(built))


@command(app, stage="Prepare text")
def data(
    sources: Sources,
    vocab: VocabularyName,
    out: Out,
    holdout: Annotated[float, typer.Option(help="Fraction of the documents held out for evaluation.")] = 0.01,
    dedup: Annotated[bool, typer.Option("--dedup", help="Keep one of several documents with equal text.")] = False,
    workers: Workers = 0,
    cluster: Cluster = None,
    task: ArrayTask = None,
    language: Language = "en",
    text_field: TextField = "text",
    max_line: MaxLine = "64MiB",
    on_long_line: LongLine = "refuse",
    on_bad_bytes: BadBytes = "refuse",
    file_format: FileFormatOption = "auto",
    document: DocumentOption = "blank-line",
    join_lines: JoinLines = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Tokenize text once, into shards from which pretraining samples its examples.

    Example: albert data wiki.jsonl books/@2 --vocab vocabulary --out data
    (with @2, a pass uses the text of books/ twice)
    """
    from albert_cli.array_jobs import parse_array_job
    from albert_cli.data.build import build_data
    from albert_cli.data.records import BuildSettings
    from albert_cli.executor import use_cluster
    from albert_cli.text.languages import warn_about_language
    from albert_cli.text.read_settings import ReadSettings, parse_size

    array_job = parse_array_job(task, os.environ, out)
    read = ReadSettings(on_bad_bytes, text_field, parse_size(max_line), on_long_line, file_format, document, join_lines)
    settings = BuildSettings(holdout=holdout, language=language, read=read, dedup=dedup)
    warn_about_language(language)
    with use_cluster(cluster):
        report = build_data(sources, find_vocabulary(vocab), out, settings, workers, array_job)
    console.print_result(report.to_json(), report.format())


@command(app, name="inspect", stage="Look inside")
def inspect(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory that albert wrote.")],
    verify: Annotated[bool, typer.Option("--verify", help="Compare every file with its SHA-256.")] = False,
    examples: Annotated[int, typer.Option(min=0, help="Training examples to decode (data directories).")] = 0,
    seed: Annotated[int | None, typer.Option(help="Seed of the examples; default: the recipe's, or 0.")] = None,
    step: Annotated[int, typer.Option(min=0, help="Training step of the examples.")] = 0,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Show the batches and lengths that this pretraining recipe samples; default: the paper's settings."
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Show the contents of a vocabulary, data, run or result directory.

    Example: albert inspect data --recipe mini/wiki --examples 3
    """
    from albert_cli.inspection import inspect_directory

    inspection = inspect_directory(directory, verify=verify, examples=examples, seed=seed, step=step, recipe=recipe)
    console.print_result(inspection.to_json(), inspection.format(), colored=examples > 0)
