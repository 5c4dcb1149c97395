"""What happens to a row that cannot be used."""

from dataclasses import dataclass, field
from typing import Final

from rdukit.errors import InvalidArgument

#: Places that are told of skipped rows.
EXAMPLES: Final = 10


@dataclass(slots=True)
class RowErrors:
    """Refuses bad rows, or counts them when ``skips``."""

    skips: bool
    count: int = 0
    examples: list[str] = field(default_factory=list)
    #: Rows left out because a value was missing and the request says so.
    dropped: int = 0

    def add(self, file: str, line: int | None, reason: str, legal: str, column: str | None = None) -> None:
        """One bad row. ``line`` counts from 1: the line of a text file, the row of another; None is the whole file.

        Raises:
            InvalidArgument: unless bad rows are skipped; names file, line, column and what is legal.
        """
        place = f"{file}:{line}" if line is not None else file
        if column is not None:
            place += f", column {column!r}"
        if not self.skips:
            raise InvalidArgument(
                f"{place}: {reason}; legal: {legal}; or pass bad_rows=skip to leave such rows out",
                file=file, line=line, column=column, legal=legal,
            )  # fmt: skip
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{place}: {reason}")
