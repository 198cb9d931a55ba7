"""Report the result of `albert data`, a whole build or an array job: as JSON values, or as lines for a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from albert_cli import console
from albert_cli.data.records import DataFacts, Split, TextCounts

_MIN_HELDOUT_TOKENS: Final = 5_000  # ten sequences of 512 positions, the length in the paper
# By default, a vocabulary lacks tokens for at most 0.005 % of the characters of the text that it was built from. A much
# higher rate of unknown tokens shows that it was built from other text.
_MAX_UNKNOWN_RATE: Final = 0.01


@dataclass(frozen=True)
class ArrayJobReport:
    """Result of one array job.

    `job` is "INDEX/COUNT", the value of `--task`. `units` is the number of work units that this job has tokenized or
    found finished, and `bytes_read` is the size of their text. The build has `units_total` work units, of which
    `units_finished` are finished.
    """

    out: Path
    job: str
    units: int
    bytes_read: int
    units_finished: int
    units_total: int
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return asdict(self) | {"out": str(self.out)}

    def format(self) -> str:
        """Format the report as one line."""
        volume = _format_volume(self.bytes_read, self.seconds)
        finished = f"{self.units_finished} of {self.units_total} work units are finished"
        return f"{self.out}: job {self.job}, {self.units} work units, {volume}; {finished}"


@dataclass(frozen=True)
class BuildReport:
    """Result of a whole build; up_to_date: True if the directory was already complete."""

    out: Path
    facts: DataFacts
    up_to_date: bool
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON values: the directory, the time, and the content of `data.json`."""
        values = {"out": str(self.out), "up_to_date": self.up_to_date, "seconds": self.seconds}
        return values | asdict(self.facts)

    def format(self) -> str:
        """Format the report as a table and some lines, with hints on unknown tokens and on too little held-out text."""
        facts = self.facts
        outcome = "up to date" if self.up_to_date else _format_volume(facts.bytes_read, self.seconds)
        output = [format_totals(facts.totals), "", f"{self.out}: {outcome}"]
        if facts.duplicates_dropped:
            output.append(f"{facts.duplicates_dropped:,} duplicate documents dropped")
        output += facts.lines.format()
        bytes_per_token = facts.bytes_read / max(facts.tokens_read, 1)
        output.append(f"{bytes_per_token:.2f} bytes of text per token, {facts.bytes_per_token_on_disk:.2f} on disk")
        if facts.unigram_entropy_nats is not None and facts.heldout_entropy_nats is not None:
            output.append(format_entropies(facts.unigram_entropy_nats, facts.heldout_entropy_nats))
        if facts.unknown_rate > _MAX_UNKNOWN_RATE:
            output.append(f"{facts.unknown_rate:.1%} of the tokens are unknown: build the vocabulary from this text")
        if facts.settings.holdout:
            hint = _format_holdout_hint(facts.totals["heldout"])
            if hint is not None:
                output.append(hint)
        return "\n".join(output)


def _format_holdout_hint(heldout: TextCounts) -> str | None:
    """Return a hint if nothing is held out, or too little for scores; else None."""
    if heldout.documents == 0:
        # If two documents differ, the build holds out at least one (`choose_heldout_hash`).
        return (
            "nothing is held out, because the text is one document, or copies of one: use --document line if each line "
            "is a document, or divide it by blank lines, or evaluate on other data with -s 'evaluation=[\"DIR\"]'"
        )
    if heldout.tokens < _MIN_HELDOUT_TOKENS:
        return "few tokens are held out, so scores on them are noisy; use a larger --holdout"
    return None


def _format_volume(text_bytes: int, seconds: float) -> str:
    """Format how much text was read, in how much time, and how fast."""
    megabytes = text_bytes / 1e6
    rate = megabytes / max(seconds, 1e-3)
    return f"{megabytes:.1f} MB of text in {console.format_duration(seconds)}, {rate:.1f} MB/s"


def format_totals(totals: Mapping[Split, TextCounts]) -> str:
    """Format the documents, sentences and tokens of each split as a table."""
    rows = [
        [split, f"{counts.documents:,}", f"{counts.sentences:,}", f"{counts.tokens:,}"]
        for split, counts in totals.items()
    ]
    return console.format_table(["split", "documents", "sentences", "tokens"], rows)


def format_entropies(unigram_entropy: float, heldout_entropy: float) -> str:
    """Format the values of `data.merge.unigram_entropies`, in nats per token, as one line."""
    return (
        f"unigram entropy of the held-out tokens: {unigram_entropy:.3f} nats with the frequencies of train, "
        f"{heldout_entropy:.3f} with their own"
    )
