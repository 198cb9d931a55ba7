"""Typed records of `data.json`, of a work unit's `shard.json` and of an unfinished build's `plan.json`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator

from albert_cli import store
from albert_cli.errors import ConfigError
from albert_cli.text.clean import Cleaning
from albert_cli.text.line_counts import LineCounts
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.work_units import WORK_UNIT_BYTES, WorkUnitRecord

Split: TypeAlias = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")

# A source whose weight has a fraction uses some of its documents ("train-more") once more in a pass than the others.
Group: TypeAlias = Literal["train", "train-more", "heldout"]
GROUPS: tuple[Group, ...] = ("train", "train-more", "heldout")

DATA_FORMAT: Final = 3  # of `data.json` and the shards
MAX_SHARD_TOKENS: Final = 64 << 20  # 128 MB of ids; counting or rewriting a shard takes about 0.7 GB of memory


def _check_format_version(number: int) -> int:
    if number != DATA_FORMAT:
        raise ValueError("written by another version of albert; build the data again")
    return number


FormatVersion = Annotated[int, AfterValidator(_check_format_version)]
RelativeName = Annotated[str, AfterValidator(store.check_relative)]  # a name below `shards/`


@dataclass(frozen=True)
class UnitCounts:
    """Numbers of documents, sentences and tokens; unpaired_tokens: tokens of documents of one sentence."""

    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    unpaired_tokens: int = 0

    def __add__(self, other: UnitCounts) -> UnitCounts:
        return UnitCounts(
            self.documents + other.documents,
            self.sentences + other.sentences,
            self.tokens + other.tokens,
            self.unpaired_tokens + other.unpaired_tokens,
        )

    def __mul__(self, times: int) -> UnitCounts:
        return UnitCounts(
            self.documents * times, self.sentences * times, self.tokens * times, self.unpaired_tokens * times
        )


@dataclass(frozen=True)
class ShardRecord:
    """A shard's name and size, so that its files need not be opened to know them."""

    name: RelativeName
    documents: int
    tokens: int


CountsBySplit = Annotated[dict[Split, UnitCounts], AfterValidator(store.require_keys(*SPLITS))]
ShardsBySplit = Annotated[dict[Split, list[ShardRecord]], AfterValidator(store.require_keys(*SPLITS))]
CountsByGroup = Annotated[dict[Group, UnitCounts], AfterValidator(store.require_keys(*GROUPS))]
ShardsByGroup = Annotated[dict[Group, list[ShardRecord]], AfterValidator(store.require_keys(*GROUPS))]


@dataclass(frozen=True)
class BuildSettings:
    """Settings that turn text into shards.

    holdout: fraction of the documents held out for evaluation; dedup: keep one of several documents with equal text;
    split_bytes: size of the parts into which plain files are split and to which small files are joined.
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
    """Everything that determines a work unit's shards except the text itself."""

    format: FormatVersion
    vocabulary: str
    holdout: float
    language: str
    read: ReadSettings
    max_shard_tokens: int
    source: WorkUnitRecord


@dataclass(frozen=True)
class RewriteTarget:
    """State of a work unit's shards after a merge has rewritten them.

    dropped: number of documents removed as duplicates; retained_sha256: of the mask of retained documents;
    heldout_hash: the document that is held out although its hash is not below the requested fraction.
    """

    dropped: int
    retained_sha256: str
    heldout_hash: int | None = None


@dataclass(frozen=True)
class ShardFacts:
    """Content of a work unit's `shard.json`.

    sha256: of the text on disk; bytes, tokens: of all text, also of documents that a weight below one leaves out;
    rewritten: None if no merge has changed these shards.
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
    """Content of `plan.json`: the work units of a build, by name and source, in order."""

    vocabulary: str
    settings: BuildSettings
    sources: list[WorkUnitRecord]
    names: list[str]

    def files_of_unit(self) -> dict[str, list[str]]:
        """Return the files of each work unit."""
        files = [[part["source"] for part in source["parts"]] for source in self.sources]
        return dict(zip(self.names, files, strict=True))

    def contains(self, other: BuildPlan) -> bool:
        """Return whether this plan has all work units of another, by name and files; the files may have changed."""
        is_same_kind = self.vocabulary == other.vocabulary and self.settings == other.settings
        return is_same_kind and other.files_of_unit().items() <= self.files_of_unit().items()


@dataclass(frozen=True)
class DataFacts:
    """Content of `data.json`: how a data directory was built, and what it contains."""

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


def read_data_facts(directory: Path) -> DataFacts:
    """Read the `data.json` of a data directory; raises `CheckpointError` for a damaged one."""
    return store.read_record(directory / "data.json", DataFacts)
