"""Reports of `albert data`: as JSON, and in a few lines for a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from albert_cli import console
from albert_cli.data.records import DataFacts, Split, UnitCounts

_FEW_HELDOUT_TOKENS: Final = 5_000  # ten sequences of the paper's length
_HIGH_UNKNOWN_RATE: Final = 0.01


@dataclass(frozen=True)
class ArrayJobReport:
    """Result of one array job: part `job` (i/n) of the tasks."""

    out: Path
    job: str
    tasks: int
    bytes_read: int
    tasks_finished: int
    tasks_total: int
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return asdict(self) | {"out": str(self.out)}

    def format(self) -> str:
        """Format the report as one line."""
        rate = _format_rate(self.bytes_read, self.seconds)
        finished = f"{self.tasks_finished} of {self.tasks_total} tasks are finished"
        return f"{self.out}: job {self.job}, {self.tasks} tasks, {rate}; {finished}"


@dataclass(frozen=True)
class BuildReport:
    """Result of a whole build; up_to_date: the directory was already complete."""

    out: Path
    facts: DataFacts
    up_to_date: bool
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON values: the directory, the time, and the content of `data.json`."""
        head = {"out": str(self.out), "up_to_date": self.up_to_date, "seconds": self.seconds}
        return head | asdict(self.facts)

    def format(self) -> str:
        """Format the report as a table and some lines, with hints where something looks wrong."""
        facts = self.facts
        done = "up to date" if self.up_to_date else _format_rate(facts.bytes_read, self.seconds)
        lines = [format_totals(facts.totals), "", f"{self.out}: {done}"]
        if facts.duplicates_dropped:
            lines.append(f"{facts.duplicates_dropped:,} duplicate documents dropped")
        lines += facts.lines.format()
        bytes_per_token = facts.bytes_read / max(facts.tokens_read, 1)
        lines.append(f"{bytes_per_token:.2f} bytes of text per token, {facts.bytes_per_token_on_disk:.2f} on disk")
        if facts.unigram_entropy_nats is not None:
            lines.append(format_entropies(facts.unigram_entropy_nats, facts.heldout_entropy_nats))
        if facts.unknown_rate > _HIGH_UNKNOWN_RATE:
            lines.append(f"{facts.unknown_rate:.1%} of the tokens are unknown: build the vocabulary from this text")
        if facts.settings.holdout:
            lines += _format_holdout_hint(facts.totals["train"].documents, facts.totals["heldout"])
        return "\n".join(lines)


def _format_holdout_hint(train_documents: int, heldout: UnitCounts) -> list[str]:
    """Return a hint if nothing is held out, or too little for scores."""
    if heldout.documents == 0 and train_documents == 1:
        return [
            "nothing is held out, because the text is one document: use --document line if each line is a document, "
            "or divide it by blank lines, or evaluate on other data with -s 'evaluation=[\"DIR\"]'"
        ]
    if heldout.documents == 0:
        return ["nothing is held out, because all documents have the same text"]
    if heldout.tokens < _FEW_HELDOUT_TOKENS:
        return ["few tokens are held out, so scores on them are noisy; use a larger --holdout"]
    return []


def _format_rate(text_bytes: int, seconds: float) -> str:
    megabytes = text_bytes / 1e6
    return (
        f"{megabytes:.1f} MB of text in {console.format_duration(seconds)}, {megabytes / max(seconds, 1e-3):.1f} MB/s"
    )


def format_totals(totals: Mapping[Split, UnitCounts]) -> str:
    """Format the documents, sentences and tokens of each split as a table."""
    rows = [
        [split, f"{counts.documents:,}", f"{counts.sentences:,}", f"{counts.tokens:,}"]
        for split, counts in totals.items()
    ]
    return console.format_table(["split", "documents", "sentences", "tokens"], rows)


def format_entropies(unigram_entropy: float, heldout_entropy: float | None) -> str:
    """Format the held-out tokens' entropies as one line."""
    return (
        f"unigram entropy of the held-out tokens: {unigram_entropy:.3f} nats"
        f" (with their own frequencies: {heldout_entropy:.3f})"
    )
