"""Rows → an Excel workbook (Office Open XML) with plain cells, one worksheet a table. Pure.

Source: ECMA-376; ours to write it by hand, so that no package is needed.
"""

import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, Final
from xml.sax.saxutils import escape, quoteattr

_MAIN: Final = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATIONS: Final = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE: Final = "http://schemas.openxmlformats.org/package/2006"
_TYPE: Final = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_HEAD: Final = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
#: Most characters of a worksheet's name.
_MOST_NAME: Final = 31


def make_workbook(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> bytes:
    """Return a workbook; each table's first line has the keys of its first row."""
    names = list(tables)
    parts = {
        "[Content_Types].xml": _content_types(len(names)),
        "_rels/.rels": _relations([("officeDocument", "xl/workbook.xml")]),
        "xl/workbook.xml": _workbook(names),
        "xl/_rels/workbook.xml.rels": _relations(
            [("worksheet", f"worksheets/sheet{n}.xml") for n in range(1, len(names) + 1)]
        ),
    }
    for number, rows in enumerate(tables.values(), 1):
        parts[f"xl/worksheets/sheet{number}.xml"] = _sheet(rows)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in parts.items():
            archive.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), _HEAD + text)
    return made.getvalue()


def _content_types(sheets: int) -> str:
    kinds = [("xl/workbook.xml", "sheet.main")]
    kinds += [(f"xl/worksheets/sheet{n}.xml", "worksheet") for n in range(1, sheets + 1)]
    listed = "".join(f'<Override PartName="/{path}" ContentType="{_TYPE}.{kind}+xml"/>' for path, kind in kinds)
    relations = "application/vnd.openxmlformats-package.relationships+xml"
    return (
        f'<Types xmlns="{_PACKAGE}/content-types"><Default Extension="rels" ContentType="{relations}"/>{listed}</Types>'
    )


def _relations(targets: Sequence[tuple[str, str]]) -> str:
    listed = "".join(
        f'<Relationship Id="rId{n}" Type="{_RELATIONS}/{kind}" Target="{target}"/>'
        for n, (kind, target) in enumerate(targets, 1)
    )
    return f'<Relationships xmlns="{_PACKAGE}/relationships">{listed}</Relationships>'


def _workbook(names: Sequence[str]) -> str:
    sheets = "".join(
        f'<sheet name={quoteattr(name[:_MOST_NAME])} sheetId="{n}" r:id="rId{n}"/>' for n, name in enumerate(names, 1)
    )
    return f'<workbook xmlns="{_MAIN}" xmlns:r="{_RELATIONS}"><sheets>{sheets}</sheets></workbook>'


def _sheet(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(rows[0]) if rows else []
    lines: list[list[Any]] = [columns, *([row.get(column) for column in columns] for row in rows)]
    text = "".join(f'<row r="{n}">{"".join(_cell(value) for value in line)}</row>' for n, line in enumerate(lines, 1))
    return f'<worksheet xmlns="{_MAIN}"><sheetData>{text}</sheetData></worksheet>'


def _cell(value: object) -> str:
    if value is None:
        return "<c/>"
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return f"<c><v>{value!r}</v></c>"
    return f'<c t="inlineStr"><is><t xml:space="preserve">{escape(str(value))}</t></is></c>'
