"""Rows → an Excel workbook with plain cells, one worksheet a table, by XlsxWriter. Pure.

Texts stay texts, even if they look like formulas or addresses.
"""

import io
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import xlsxwriter

#: Most characters of a worksheet's name. Source: Excel's specification.
_MOST_NAME: Final = 31
#: Equal tables make equal files.
_CREATED: Final = datetime(1980, 1, 1)
_OPTIONS: Final = {"in_memory": True, "strings_to_formulas": False, "strings_to_urls": False}


def make_workbook(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> bytes:
    """Return a workbook; each table's first line has the keys of its first row."""
    made = io.BytesIO()
    with xlsxwriter.Workbook(made, _OPTIONS) as workbook:
        workbook.set_properties({"created": _CREATED})
        for name, rows in tables.items():
            sheet = workbook.add_worksheet(name[:_MOST_NAME])
            columns = list(rows[0]) if rows else []
            sheet.write_row(0, 0, columns)
            for number, row in enumerate(rows, 1):
                for place, column in enumerate(columns):
                    _write(sheet, number, place, row.get(column))
    return made.getvalue()


def _write(sheet: "xlsxwriter.worksheet.Worksheet", row: int, column: int, value: object) -> None:
    """Write a cell: numbers as numbers, nothing for None, and other values, also infinite ones, as text."""
    if value is None:
        return
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        sheet.write_number(row, column, value)
    else:
        sheet.write_string(row, column, str(value))
