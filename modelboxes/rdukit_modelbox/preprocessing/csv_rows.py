"""CSV files → rows of fields with their line numbers, however large the file. Source: RFC 4180."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit_modelbox.preprocessing.bad_rows import RowErrors
from rdukit_modelbox.preprocessing.lines import LONGEST_LINE, read_line_blocks
from rdukit_modelbox.preprocessing.sources import SourceFile

LEGAL_FIELDS: Final = "fields as in RFC 4180"


class CsvFile:
    """An open CSV file; see ``open_csv``."""

    def __init__(self, source: SourceFile, bad: RowErrors) -> None:
        self._source = source
        self._bad = bad
        #: Bytes of the file read so far: of the compressed one if it is.
        self.consumed = 0
        delimiter = "\t" if ".tsv" in source.name.lower() else ","
        self._reader = csv.reader(self._lines(), delimiter=delimiter, strict=True)
        #: The columns' names, without spaces around.
        self.header: list[str] = self._read_header()

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Line number, from 1, and fields of each row with as many fields as the header; empty lines are left out.

        Raises:
            InvalidArgument: a row has other fields and ``bad`` refuses, or the file is damaged.
        """
        reader, fields, bad, name = self._reader, len(self.header), self._bad, self._source.name
        while True:
            try:
                for row in reader:
                    if len(row) == fields:
                        yield reader.line_num, row
                    elif row:
                        bad.add(name, reader.line_num, f"{len(row)} fields", f"{fields} fields as in the header")
                return
            except csv.Error as cause:
                bad.add(name, reader.line_num, str(cause), LEGAL_FIELDS)

    def _lines(self) -> Iterator[str]:
        for block in read_line_blocks(self._source):
            self.consumed = block.consumed
            try:
                lines = block.data.decode().split("\n")
            except UnicodeDecodeError as cause:
                raise InvalidArgument(
                    f"{self._source.name}: not UTF-8 in the lines from {block.line}; legal: text in UTF-8"
                ) from cause
            lines.pop()
            # Not splitlines: it also cuts at characters that may stand in a field.
            yield from (line + "\n" for line in lines)

    def _read_header(self) -> list[str]:
        try:
            names = [name.strip() for name in next(self._reader, [])]
        except csv.Error as cause:
            raise InvalidArgument(
                f"{self._source.name}:{self._reader.line_num}: the header is not readable as CSV: {cause}; legal: "
                f"{LEGAL_FIELDS}"
            ) from cause
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidArgument(
                f"{self._source.name}:1: more than one column is named {twice[0]!r}; legal: different names"
            )
        return names


@contextmanager
def open_csv(source: SourceFile, bad: RowErrors) -> Iterator[CsvFile]:
    """Read a CSV file, or one with tabs if ``.tsv`` is in its name; ``bad`` hears of rows that cannot be used.

    Raises:
        InvalidArgument: the header is no CSV, two columns have the same name, or the file is damaged.
    """
    before = csv.field_size_limit(LONGEST_LINE)
    try:
        yield CsvFile(source, bad)
    finally:
        csv.field_size_limit(before)
