"""Training examples as text: two segments, the order label, and what has to be predicted."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from albert_cli import console
from albert_cli.data.batches import PackedBatch, original_ids
from albert_cli.data.pairs import PairSettings
from albert_cli.text.statistics import printable

if TYPE_CHECKING:
    from rich.text import Text

LABELS = {
    "sop": ("in order", "swapped"),
    "nsp": ("next", "from another document"),
    "three-way": ("in order", "swapped", "from another document"),
    "none": ("", ""),
}
_MASK = "[MASK]"
LEGEND = "[…]: to predict; seen as [MASK], or as what follows the |, with _ for [MASK]"


def decode(packed: PackedBatch, pieces: Sequence[str], index: Sequence[int]) -> list[dict[str, Any]]:
    """Each sequence as text: its segments as lists of (text, what the model sees, or None where nothing is to be
    predicted)."""
    ids, original = packed.ids.tolist(), original_ids(packed).tolist()
    masked = np.zeros(len(ids), bool)
    masked[packed.masked_index] = True
    shown = [printable(piece.replace("▁", " ")) for piece in pieces]
    decoded = []
    for number, (start, stop) in enumerate(zip(packed.offsets[:-1], packed.offsets[1:], strict=True)):
        segments: list[list[tuple[str, str | None]]] = [[], []]
        for position in range(int(start) + 1, int(stop)):
            if original[position] != original[int(stop) - 1] or masked[position]:  # every [SEP] ends a segment
                run = segments[int(packed.segment_ids[position])]
                text = shown[original[position]]
                seen = shown[ids[position]] if masked[position] else None
                if run and (run[-1][1] is None) == (seen is None):
                    text, seen = run[-1][0] + text, None if seen is None else str(run[-1][1]) + seen
                    run.pop()
                run.append((text, seen))
        label = int(packed.order_labels[number])
        size = int(stop - start)
        decoded.append({"index": index[number], "positions": size, "order_label": label, "segments": segments})
    return decoded


def show(example: dict[str, Any], settings: PairSettings) -> list[str]:
    """One decoded example for a person, wrapped where stdout is a terminal, coloured where that has colours."""
    from rich.text import Text

    label = example["order_label"]
    head = Text(f"example {example['index']}", "bold").append(f": {example['positions']} positions, ", "not bold")
    if label < 0:
        head.append("no order label", "not bold")
    else:
        head.append(f"label {label}: {LABELS[settings.sentence_loss][label]}", ("green", "magenta", "yellow")[label])
    lines = _wrapped(head, "")
    for name, segment, style in zip("AB", example["segments"], ("green", "magenta"), strict=True):
        if segment:
            text = Text()
            for token, seen in segment:
                if seen is None:
                    text.append(token)
                    continue
                # A predicted span in brackets, and what is seen in its place where something is.
                text.append(" " * token.startswith(" ")).append("[", "yellow").append(
                    token.lstrip(" "), "black on yellow"
                )
                if seen.replace(_MASK, ""):
                    text.append("|" + " ".join(seen.replace(_MASK, " _ ").split()), "yellow")
                text.append("]", "yellow")
            text = text[len(text.plain) - len(text.plain.lstrip()) :]
            text.rstrip()
            lines += _wrapped(Text(f"{name}: ", f"{style} bold"), "  ", text)
    return lines


def _wrapped(lead: Text, indent: str, text: Text | None = None) -> list[str]:
    """Lines of a terminal's width that begin with `lead` and, from the second on, with blanks below it."""
    from rich.console import Console
    from rich.text import Text

    colour, is_terminal = console.has_colour(), sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else 1 << 20
    screen = Console(file=io.StringIO(), width=width, force_terminal=colour, no_color=not colour, highlight=False)
    margin = len(indent) + len(lead.plain)
    rows = text.wrap(screen, max(20, width - margin)) if text is not None else [Text()]
    lines = []
    for number, row in enumerate(rows):
        start = Text(indent).append_text(lead) if number == 0 else Text(" " * margin)
        with screen.capture() as captured:
            screen.print(start.append_text(row), end="", soft_wrap=True)
        lines.append(captured.get())
    return lines
