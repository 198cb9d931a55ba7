"""Warn if a corpus has too few segment pairs for sentence order prediction (SOP) or next sentence prediction (NSP)."""

from __future__ import annotations

from typing import Final

from albert_cli import console
from albert_cli.data.records import TextCounts

_MAX_UNPAIRED_FRACTION: Final = 0.5  # of the tokens, in documents of one sentence


def warn_missing_pairs(
    counts: TextCounts, sentence_loss: str | None = None, *, has_other_documents: bool = True
) -> None:
    """Warn if most of the text is in documents of one sentence, or if "nsp" has no second document.

    counts: of the train split; sentence_loss: the recipe's `data.sentence_loss`, or None before a recipe is chosen. The
    warning is then that for "sop". has_other_documents: True if the text has several distinct documents.
    """
    if sentence_loss == "nsp" and not has_other_documents:
        console.warn(
            "the data has one document, or copies of one, so there is no other document to take a next sentence from: "
            "divide the text into documents, or use -s data.sentence_loss=sop"
        )
    unpaired = counts.unpaired_tokens / max(counts.tokens, 1)
    if sentence_loss == "none" or unpaired <= _MAX_UNPAIRED_FRACTION:
        return
    console.warn(
        f"{unpaired:.0%} of the text is in documents of one sentence, from which no sentence order can be learned. "
        "Give every document several sentences: --document selects where a document of plain text ends, "
        "hf:NAME?rows=N joins rows, --language selects the rules that split sentences. "
        "Or pretrain without this loss: -s data.sentence_loss=none"
    )
