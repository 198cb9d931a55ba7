"""Typed records of the JSON files that `albert data` writes.

`data.json` describes a finished data directory, `shard.json` the shards of one work unit (a part of the text, see
`text.work_units`), and `plan.json` an unfinished build. Tokenization, merge and sampling exchange these records.

A build divides the documents into the groups "train", "train-more" and "heldout", from which the merge makes the splits
"train" and "heldout".
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator

from albert_cli import store
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.text.clean import Cleaning
from albert_cli.text.line_counts import LineCounts
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.work_units import WORK_UNIT_BYTES, WorkUnitRecord

Split: TypeAlias = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")

# If the source has the weight 2.25, a pass uses a document of "train" two times, and one of "train-more" three times.
Group: TypeAlias = Literal["train", "train-more", "heldout"]
GROUPS: tuple[Group, ...] = ("train", "train-more", "heldout")

DATA_FORMAT: Final = 3  # version of `data.json` and of the shards
MAX_SHARD_TOKENS: Final = 64 << 20  # 128 MB of uint16 ids; to count or rewrite a shard takes about 0.7 GB of memory


def _check_format_version(number: int) -> int:
    if number != DATA_FORMAT:
        raise ValueError("written by another version of albert; build the data again")
    return number


FormatVersion = Annotated[int, AfterValidator(_check_format_version)]
RelativeName = Annotated[str, AfterValidator(store.check_relative)]  # a path relative to `shards/`


@dataclass(frozen=True)
class TextCounts:
    """Numbers of documents, sentences and tokens of a text.

    unpaired_tokens: tokens in documents of one sentence, which give no segment pair.
    """

    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    unpaired_tokens: int = 0

    def __add__(self, other: TextCounts) -> TextCounts:
        return TextCounts(
            self.documents + other.documents,
            self.sentences + other.sentences,
            self.tokens + other.tokens,
            self.unpaired_tokens + other.unpaired_tokens,
        )

    def __mul__(self, times: int) -> TextCounts:
        return TextCounts(
            self.documents * times, self.sentences * times, self.tokens * times, self.unpaired_tokens * times
        )


@dataclass(frozen=True)
class ShardRecord:
    """A shard's name and size. From the sizes, `TokenCorpus` computes which shard contains a token or a document."""

    name: RelativeName
    documents: int
    tokens: int


CountsBySplit = Annotated[dict[Split, TextCounts], AfterValidator(store.require_keys(*SPLITS))]
ShardsBySplit = Annotated[dict[Split, list[ShardRecord]], AfterValidator(store.require_keys(*SPLITS))]
CountsByGroup = Annotated[dict[Group, TextCounts], AfterValidator(store.require_keys(*GROUPS))]
ShardsByGroup = Annotated[dict[Group, list[ShardRecord]], AfterValidator(store.require_keys(*GROUPS))]


@dataclass(frozen=True)
class BuildSettings:
    """Settings that turn text into shards.

    holdout: fraction of the documents that is held out for evaluation; language: ISO 639 code of the language whose
    rules split text into sentences; read: how files are read; dedup: retain one of several documents with equal text;
    split_bytes: size of a work unit, to which large plain files are split and small files are joined;
    max_shard_tokens: maximum number of tokens in a shard.
    """

    holdout: float = 0.01
    language: str = "en"
    read: ReadSettings = field(default_factory=ReadSettings)
    dedup: bool = False
    split_bytes: int = WORK_UNIT_BYTES
    max_shard_tokens: int = MAX_SHARD_TOKENS

    def __post_init__(self) -> None:
        if not 0 <= self.holdout < 1:
            raise ConfigError(f"--holdout {self.holdout:g}: must be at least 0 and below 1")


@dataclass(frozen=True)
class ShardIdentity:
    """Everything that determines a work unit's shards except the text; vocabulary: the vocabulary's fingerprint."""

    format: FormatVersion
    vocabulary: str
    holdout: float
    language: str
    read: ReadSettings
    max_shard_tokens: int
    source: WorkUnitRecord


@dataclass(frozen=True)
class RewriteTarget:
    """State of a work unit's shards after `data.rewrites` has rewritten them.

    dropped: number of documents removed as duplicates.
    retained_sha256: hash of a mask over all documents of the unit, with False for the duplicates.
    heldout_hash: text hash of the one document that is held out if the fraction `holdout` selects no document of the
    whole build. None if the fraction selects documents, or if the document is in another unit.
    """

    dropped: int
    retained_sha256: str
    heldout_hash: int | None = None


@dataclass(frozen=True)
class ShardFacts:
    """Content of a work unit's `shard.json`.

    sha256: hash of the source files' bytes; bytes, tokens: size of all text, including documents that a weight below 1
    leaves out; lines: numbers of changed and skipped lines; shards, totals: by group; rewritten: None if the shards are
    still as tokenization wrote them.
    """

    identity: ShardIdentity
    sha256: str
    bytes: int
    tokens: int
    lines: LineCounts
    shards: ShardsByGroup
    totals: CountsByGroup
    rewritten: RewriteTarget | None = None


@dataclass(frozen=True)
class BuildPlan:
    """Content of `plan.json`: the work units of a build in order.

    vocabulary: the vocabulary's fingerprint; sources: the record of each work unit, with its files; names: the work
    units' directories below `shards/`.
    """

    vocabulary: str
    settings: BuildSettings
    sources: list[WorkUnitRecord]
    names: list[str]

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.names):
            raise ValueError(f"{len(self.sources)} sources, but {len(self.names)} names")

    def files_by_unit(self) -> dict[str, list[str]]:
        """Return the source files of each work unit, by the unit's name."""
        files = [[part["source"] for part in unit["parts"]] for unit in self.sources]
        return dict(zip(self.names, files, strict=True))

    def contains(self, other: BuildPlan) -> bool:
        """Return True if this plan has the same settings as another plan, and all of its work units.

        Work units are equal if their names and files are; the content of the files is not compared.
        """
        has_same_settings = self.vocabulary == other.vocabulary and self.settings == other.settings
        return has_same_settings and other.files_by_unit().items() <= self.files_by_unit().items()


def describe_first_change(saved: BuildPlan | DataFacts, plan: BuildPlan) -> str:
    """Return a remark in parentheses on the first setting or source that differs from the saved ones; "" if none does.

    The text, the weights and the order of the sources are not compared. A source is compared as it is spelled: another
    path of the same file is another source.
    """
    if saved.vocabulary != plan.vocabulary:
        return " (started with another vocabulary)"
    saved_settings = asdict(saved.settings) | asdict(saved.settings.read)
    new_settings = asdict(plan.settings) | asdict(plan.settings.read)
    for name, value in saved_settings.items():
        if name != "read" and value != new_settings[name]:
            return f" (started with {name} {value}, now {new_settings[name]})"
    saved_names = [part["source"] for unit in saved.sources for part in unit["parts"]]
    new_names = [part["source"] for unit in plan.sources for part in unit["parts"]]
    new_name_set = set(new_names)
    saved_name_set = set(saved_names)
    removed = [name for name in saved_names if name not in new_name_set]
    added = [name for name in new_names if name not in saved_name_set]
    if removed:
        replacement = f"`{added[0]}`" if added else "without it"
        return f" (started with source `{removed[0]}`, now {replacement})"
    return f" (started without source `{added[0]}`)" if added else ""


@dataclass(frozen=True)
class DataFacts:
    """Content of `data.json`: how a data directory was built, and what it contains.

    dtype: of the ids; vocabulary: the vocabulary's fingerprint; sources: one for each work unit, with the hash of the
    unit's text.
    bytes_read, tokens_read: size of all text that was read; totals: what a pass over each split uses.
    bytes_per_token_on_disk: size of all files of the work units, divided by the number of tokens in their shards.
    unknown_rate: fraction of [UNK] among the train tokens.
    unigram_entropy_nats: cross-entropy of the held-out tokens with train's token frequencies; heldout_entropy_nats:
    entropy of the held-out tokens, with their own frequencies. Both are in nats per token, and None without held-out
    text (`data.merge.unigram_entropies`).
    shards: each shard as often as a pass uses it; fingerprints: of the work units' directories, by their names.
    """

    format: FormatVersion
    dtype: Literal["uint16", "uint32"]
    vocabulary: str
    settings: BuildSettings
    sources: list[WorkUnitRecord]
    vocab_size: int
    cleaning: Cleaning | None  # None: the tokenizer normalizes text itself
    bytes_read: int
    tokens_read: int
    lines: LineCounts
    duplicates_dropped: int
    totals: CountsBySplit
    bytes_per_token_on_disk: float
    unknown_rate: float
    unigram_entropy_nats: float | None
    heldout_entropy_nats: float | None
    shards: ShardsBySplit
    fingerprints: dict[RelativeName, str]


def require_data_directory(directory: Path) -> None:
    """Raise `CheckpointError` if a path is not a complete data directory; its content is not verified."""
    hint = "build one with: albert data SOURCE --vocab DIR --out DIR"
    if not directory.is_dir():
        raise CheckpointError(*store.no_directory_message(directory, hint))
    manifest = store.read_manifest(directory)
    if manifest is not None and manifest.kind == "data":
        return
    has_data_files = any((directory / name).exists() for name in ("data.json", "shards"))
    adjective = "complete " if has_data_files else ""
    raise CheckpointError(f"{directory}: not a {adjective}data directory of `albert data`", hint)


def read_data_facts(directory: Path) -> DataFacts:
    """Read the `data.json` of a data directory; raise `CheckpointError` if it is missing or damaged."""
    return store.read_record(directory / "data.json", DataFacts)
