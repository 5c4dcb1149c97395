"""Values of features and labels: one table is the same data set in every format, or refused in every one."""

import csv
import datetime
import decimal
import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from rdukit.errors import InvalidArgument
from rdukit_modelbox.preprocessing.array_rows import read_hdf5, read_npz
from rdukit_modelbox.preprocessing.columns import ColumnFigures, RowPreprocessRequest, encoding_of
from rdukit_modelbox.preprocessing.sources import Format, RowErrors, SourceFile
from rdukit_modelbox.preprocessing.table_rows import find_layout, read_table
from rdukit_serving.raw_inputs.legal_values import NotLegal, name_of, number_of, plain_numbers
from support import shows

pytestmark = shows("preprocess")


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("1", 1.0), (" -2.5e3 ", -2500.0), ("+.5", 0.5), ("5.", 5.0), (7, 7.0), (True, 1.0), ("false", 0.0),
        ("True", 1.0), (decimal.Decimal("0.25"), 0.25), ("1e-400", 0.0),
        (3.4028234e38, 3.4028234e38), (1 << 60, float(1 << 60)),
    ],
)  # fmt: skip
def test_a_number_is_what_json_would_say(value: object, number: float) -> None:
    assert number_of(value) == number


@pytest.mark.parametrize("value", [None, "", " ", "?", "NaN", "null", "N/A", "none", math.nan])
def test_a_missing_number_is_nan_and_a_missing_name_is_none(value: object) -> None:
    assert math.isnan(number_of(value))
    assert name_of(value) is None


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("1_000", "is not a number"), ("٣", "is not a number"), ("0x10", "is not a number"), ("1 2", "is not a number"),
        ("1,5", "is not a number"), ("seven", "is not a number"), ([1], "is not a number"), (b"1", "is not a number"),
        (datetime.date(2026, 1, 2), "is not a number"), ("inf", "is not finite"), ("-Infinity", "is not finite"),
        (math.inf, "is not "
                   "finite"), ("1e400", "is not finite"), (10**400, "is not finite"), ("1e39", "beyond float32"),
        (-1e39, "beyond float32"), (3.5e38, "beyond float32"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_by_its_reason(value: object, why: str) -> None:
    with pytest.raises(NotLegal, match=why):
        number_of(value)
    assert plain_numbers([[value]]) is None, "the short way reads no more than the long one"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (2, "2"), (2.0, "2"), ("2.0", "2"), ("-0.0", "0"), (decimal.Decimal("3.00"), "3"), (1.5, "1.5"),
        ("1.5", "1.5"), (True, "True"), (" ok ", "ok"), (b"ok", "ok"),
        (datetime.date(2026, 1, 2), "2026-01-02"), ("007", "007"), ("1_000", "1_000"),
    ],
)  # fmt: skip
def test_a_name_is_a_text_or_a_numbers_shortest_form(value: object, name: str) -> None:
    assert name_of(value) == name


@pytest.mark.parametrize("value", [math.inf, "-inf", "Infinity", [1], {"a": 1}, b"\xff"])
def test_what_is_no_name_is_refused(value: object) -> None:
    with pytest.raises(NotLegal):
        name_of(value)


COLUMNS = ("x", "y")
Table = list[tuple[list[float | None], object]]


def _csv(path: Path, table: Table) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerows(
            [
                [*COLUMNS, "label"],
                *([*("" if v is None else v for v in row), "" if label is None else label] for row, label in table),
            ]
        )


def _json(path: Path, table: Table) -> None:
    def told(value: object) -> object:  # JSON has no infinity but as a text
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    rows = [dict(zip((*COLUMNS, "label"), map(told, (*row, label)), strict=True)) for row, label in table]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _parquet(path: Path, table: Table) -> None:
    columns = {name: pyarrow.array([row[at] for row, _ in table], pyarrow.float64()) for at, name in enumerate(COLUMNS)}
    pyarrow.parquet.write_table(pyarrow.table(columns | {"label": pyarrow.array([label for _, label in table])}), path)


def _arrays(table: Table) -> dict[str, np.ndarray]:
    labels = [label for _, label in table]
    if any(isinstance(label, str) for label in labels):
        kept = np.array(["" if label is None else str(label) for label in labels])
    else:
        kept = np.array([math.nan if label is None else label for label in labels])
    return {
        "features": np.array([[math.nan if v is None else v for v in row] for row, _ in table], np.float64),
        "label": kept,
    }


def _npz(path: Path, table: Table) -> None:
    with path.open("wb") as stream:
        np.savez(stream, **_arrays(table))


def _hdf5(path: Path, table: Table) -> None:
    with h5py.File(path, "w") as file:
        for name, values in _arrays(table).items():
            file[name] = values.astype("S") if values.dtype.kind == "U" else values


FORMATS: dict[Format, Callable[[Path, Table], None]] = {
    Format.CSV: _csv, Format.JSONL: _json, Format.PARQUET: _parquet, Format.NPZ: _npz, Format.HDF5: _hdf5,
}  # fmt: skip


def read(path: Path, format: Format, missing: str, *, skips: bool) -> tuple[object, ...]:
    """Return features and labels that a preprocess would make, or that it refuses."""
    source = SourceFile(path, path.name, format, path.stat().st_size, 0, is_gzip=False)
    request, bad = RowPreprocessRequest(missing=missing, skips_bad_rows=skips), RowErrors(skips=skips)
    try:
        match format:
            case Format.NPZ:
                blocks = list(read_npz(source, request, bad))
            case Format.HDF5:
                blocks = list(read_hdf5(source, request, bad))
            case _:
                blocks = list(read_table(source, find_layout(source, request), request, bad))
    except InvalidArgument:
        return ("refused",)
    numbers = np.concatenate([np.asarray(block.numbers_NC, np.float64) for block in blocks])
    labels = [label for block in blocks for label in block.labels_N]
    features = encoding_of(request, ColumnFigures.of(len(COLUMNS)), ()).encode(numbers, ())
    return features.tobytes(), tuple(labels), bad.count, bad.dropped


def draw_table(draw: random.Random) -> Table:
    """Return a table of ordinary rows, with at most two that are not."""
    strange: tuple[float | None, ...] = (
        None,
        math.nan,
        math.inf,
        -math.inf,
        1e39,
        -3.5e38,
        3.4028235e38,
        1e-46,
        -0.0,
        1e300,
    )
    labels = draw.choice(
        (
            (0, 1, 2),
            (0.0, 1.0, None),
            ("ok", "worn", ""),
            ("a", "none", "b"),
            (0.5, 1.5, math.nan),
            (1.0, math.inf),
            (3, 1 << 40),
        )
    )
    table: Table = [
        ([draw.uniform(-9, 9), float(draw.randrange(99))], draw.choice(labels)) for _ in range(draw.randrange(1, 9))
    ]
    for _ in range(draw.randrange(3)):
        row = draw.choice(table)[0]
        row[draw.randrange(2)] = draw.choice(strange)
    return table


@pytest.mark.parametrize("seed", range(4))
def test_a_table_is_the_same_data_set_in_all_formats(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    for number in range(130):
        table = draw_table(draw)
        missing, skips = draw.choice(("error", "drop", "zero")), draw.random() < 0.5
        found = {}
        for format, write in FORMATS.items():
            path = tmp_path / f"{number}.{format}"
            write(path, table)
            found[format] = read(path, format, missing, skips=skips)
        assert len(set(found.values())) == 1, (table, missing, skips, found)
