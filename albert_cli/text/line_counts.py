"""Count the lines of a text that are changed or left out, and format the messages about them."""

from __future__ import annotations

from dataclasses import dataclass

from albert_cli.formatting import count_of


@dataclass(frozen=True)
class LineCounts:
    """Numbers of lines, records or cells.

    too_long: left out because of their length; replaced: with invalid bytes or characters that were replaced;
    without_text: left out because they are null or blank.
    """

    too_long: int = 0
    replaced: int = 0
    without_text: int = 0

    def __add__(self, other: LineCounts) -> LineCounts:
        return LineCounts(
            self.too_long + other.too_long, self.replaced + other.replaced, self.without_text + other.without_text
        )

    def format(self) -> list[str]:
        """Return a message for each count that is not zero."""
        lines = []
        if self.too_long:
            lines.append(f"{count_of(self.too_long, 'long line')} left out")
        if self.replaced:
            lines.append(f"invalid bytes or characters replaced in {count_of(self.replaced, 'line')}")
        if self.without_text:
            lines.append(f"{count_of(self.without_text, 'row')} without text left out")
        return lines
