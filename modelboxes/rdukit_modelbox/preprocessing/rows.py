"""Preprocessing of rows: tables, arrays and images become normalised float32 features and a class per row.

The first reading checks the input and counts labels, names and figures; the second encodes each row into buckets; the
buckets become the data set. Memory holds a few blocks and one bucket.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import sha256_of
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.preprocessing.columns import (
    NUMBER_LABEL,
    ColumnFigures,
    NameCounts,
    RowBlock,
    RowPreprocessRequest,
    classes_of,
    encoding_of,
    known_names,
)
from rdukit_modelbox.preprocessing.datasets import DEV, load_dataset, read_manifest, write_dataset
from rdukit_modelbox.preprocessing.progress import WorkFolder, digests_meanwhile, identity_of
from rdukit_modelbox.preprocessing.row_run import (
    BUCKET_BYTES,
    SPLITS,
    TABLES,
    RowRun,
    RowSpill,
    read_rows,
    row_type,
    within_limit,
)
from rdukit_modelbox.preprocessing.sources import Format, RowErrors, find_sources
from rdukit_modelbox.preprocessing.table_audit import NumberLabels, TableAudit
from rdukit_modelbox.verbs.context import VerbContext, VerbResult
from rdukit_serving.raw_inputs.answers import NumberTarget
from rdukit_serving.raw_inputs.encoding import FeatureEncoding
from rdukit_serving.raw_inputs.preprocessing import TablePreprocessing, write_preprocessing

ROW_FORMATS: Final = (*TABLES, Format.NPZ, Format.HDF5, Format.IMAGES)


def preprocess_rows(
    context: VerbContext, parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path], output: Path
) -> VerbResult:
    """Write ``<output>/dataset``: features and classes of both splits, and the manifest.

    Raises:
        NotFound, InvalidArgument: an input is missing or cannot be used; names file, line, column and what is legal.
        Cancelled: between two blocks; the next attempt reuses the figures of a finished first reading.
    """
    request = RowPreprocessRequest.of(parameters)
    sources = find_sources(
        inputs["data"], str(parameters.get("pattern", "**/*")), str(parameters.get("format", "auto")), ROW_FORMATS
    )
    identity = {
        "kind": "rows",
        "request": asdict(request),
        "sources": [source.to_json() for source in sources],
        "sizes": dict(context.box.sizes),
    }
    folder, work_folder = output / "dataset", output / ".preprocess"
    figures = _find_finished(folder, identity_of(identity))
    if figures is not None and not work_folder.exists():
        context.log(f"{folder} is already complete, from the same files and parameters")
        return VerbResult(figures, {"dataset": folder})
    run = RowRun.begin(context, request, sources, WorkFolder(work_folder, identity))
    found = run.work.find("figures") or gather_figures(run)
    for finding in found["findings"]:
        context.log(finding)
    names = [known_names(counts, request.rare_below) for counts in found["categories"]]
    encoding = encoding_of(request, ColumnFigures.from_json(found["columns"]), names)
    _check_model(context, encoding.features, found)
    figures = write_rows(run, encoding, found, encode_rows(run, encoding, found))
    run.work.hand_over("dataset", folder)
    context.log(
        f"{figures['train_samples']} rows to train, {figures['test_samples']} to test, {figures['features']} features"
    )
    return VerbResult(figures, {"dataset": folder})


def _check_model(context: VerbContext, features: int, found: Mapping[str, Any]) -> None:
    sizes = context.box.sizes
    wanted, most = sizes.get("num_features"), sizes.get("num_classes")
    classes = 1 if found["target"] else max(classes_of(list(found["labels"])).values()) + 1
    if wanted is not None and features != wanted:
        raise InvalidArgument(
            f"the rows have {features} features, but box {context.box.name} expects {wanted}; choose other columns, "
            "or images of another size"
        )
    if most is not None and classes > most:
        raise InvalidArgument(f"the labels have {classes} classes, but box {context.box.name} has {most}")


def _find_finished(folder: Path, identity: str) -> dict[str, Any] | None:
    try:
        manifest = read_manifest(folder)
        if manifest.get("request") != identity:
            return None
        load_dataset(folder)
    except (NotFound, InvalidArgument):
        return None
    figures: dict[str, Any] = manifest["figures"]
    return figures


def gather_figures(run: RowRun) -> dict[str, Any]:
    """Read all rows, and digest the sources on another core meanwhile.

    Returns:
        The step's note: figures of ``columns``, names of each of ``categories``, ``labels`` with their counts in all
        and per split, ``rows`` per split, ``sha256`` per source, numbers of omitted rows.
    Raises:
        InvalidArgument: a row cannot be used, or none can.
        Cancelled: between two blocks.
    """
    bad = RowErrors(run.request.skips_bad_rows)
    tally = _Tally(run)
    with digests_meanwhile(run.sources) as digests:
        for block, splits_N, _ in run.blocks(bad, "read"):
            tally.add(block, splits_N)
        sha256 = digests()
    if tally.figures is None or tally.rows[0] == 0:
        raise InvalidArgument(f"no row can be used for training in {', '.join(s.name for s in run.sources[:5])}")
    if bad.count or bad.dropped:
        run.context.log(f"omitted {bad.count} bad rows and {bad.dropped} rows with missing values: {bad.examples[:3]}")
    columns = tally.figures.to_json()
    counts = [column.counts for column in tally.names]
    target = tally.target.target() if tally.target else None
    if tally.target and target and not target["deviation"]:
        raise InvalidArgument(
            f"the label {run.request.label_column!r} is {target['mean']:g} in all training rows; expected numbers that "
            "differ, or another label_column"
        )
    findings = tally.audit.findings(columns, counts, tally.labels.counts) if tally.audit else []
    if tally.target and run.layout:
        findings += tally.target.findings(run.layout.numeric)
    note = {
        "findings": findings,
        "target": target,
        "columns": columns,
        "categories": counts,
        "labels": tally.labels.counts,
        "class_counts": {
            kind: split.counts
            for kind, split in zip(SPLITS, tally.by_split, strict=True)
            if split.counts or kind != DEV
        },
        "rows": tally.rows,
        "bad_rows": bad.count,
        "bad_examples": bad.examples,
        "dropped_rows": bad.dropped,
        "sha256": sha256,
    }
    run.work.finish("figures", note)
    return note


class _Tally:
    """Counts that are taken while rows are read."""

    def __init__(self, run: RowRun) -> None:
        self._limit = run.request.limit
        #: For the numeric columns; None before the first block.
        self.figures: ColumnFigures | None = None
        categorical = run.layout.categorical if run.layout else ()
        is_number = run.request.predict == NUMBER_LABEL
        self.target = NumberLabels() if is_number else None
        self.audit = (
            TableAudit(run.layout.numeric, categorical, run.layout.dates, has_classes=not is_number)
            if run.layout
            else None
        )
        self.names = [NameCounts(f"column {name!r}") for name in categorical]
        self.labels = NameCounts(f"the label {run.request.label_column!r}")
        self.by_split = [NameCounts("a split's label") for _ in SPLITS]
        #: Of each split.
        self.rows = [0] * len(SPLITS)

    def add(self, block: RowBlock, splits_N: NDArray[np.int64]) -> None:
        """Count a block.

        Raises:
            InvalidArgument: its rows are of another width, or there are too many names.
        """
        width = block.numbers_NC.shape[1]
        if self.figures is None:
            self.figures = ColumnFigures.of(width)
        if width != len(self.figures.count_C):
            raise InvalidArgument(f"rows have {len(self.figures.count_C)} and {width} numbers; expected equal widths")
        kept_N = within_limit(self._limit, self.rows, splits_N)
        if self.audit is not None:
            self.audit.add(block)
        self.figures.add(block.numbers_NC[kept_N & (splits_N == 0)])
        for column, values in zip(self.names, block.names_KN, strict=True):
            column.add([value for value, kept in zip(values, kept_N.tolist(), strict=True) if kept])
        if self.target is not None:
            self.target.add(block, splits_N == 0)
            return
        for label, split, kept in zip(block.labels_N, splits_N.tolist(), kept_N.tolist(), strict=True):
            if kept:
                self.by_split[split].counts[label] = self.by_split[split].counts.get(label, 0) + 1
        self.labels.add([label for label, kept in zip(block.labels_N, kept_N.tolist(), strict=True) if kept])


def encode_rows(run: RowRun, encoding: FeatureEncoding, found: Mapping[str, Any]) -> int:
    """Write the encoded rows to disk; ``found`` is the first reading's note. Returns the buckets of each split.

    Raises:
        InvalidArgument: the input changed between the readings.
        Cancelled: between two blocks.
    """
    target = NumberTarget(**found["target"]) if found["target"] else None
    largest = max(found["rows"]) * row_type(encoding.features).itemsize
    buckets = 1 if run.request.seed is None else max(1, -(-largest // BUCKET_BYTES))
    if run.work.find("rows") is None:
        classes = {} if target else classes_of(list(found["labels"]))
        spill = RowSpill(run.work.fresh("rows"), len(SPLITS), buckets, encoding.features, target is None)
        counts = [0] * len(SPLITS)
        for block, splits_N, random_N in run.blocks(RowErrors(skips=True), "encode"):
            kept_N = within_limit(run.request.limit, counts, splits_N)
            labels_N = (
                target.scaled(np.array(block.labels_N, np.float64))[kept_N]
                if target
                else np.array([classes.get(label, -1) for label in block.labels_N], np.int64)[kept_N]
            )
            if not kept_N.all():
                chosen = tuple([v for v, kept in zip(c, kept_N.tolist(), strict=True) if kept] for c in block.names_KN)
                block = RowBlock(block.numbers_NC[kept_N], chosen, [""] * len(labels_N), block.consumed)
            features_NF = encoding.encode(block.numbers_NC, block.names_KN)
            spill.add(features_NF, labels_N, splits_N[kept_N], random_N[kept_N] % buckets)
        spill.flush()
        if counts != found["rows"]:
            raise InvalidArgument("the input changed while it was read; preprocess again")
        run.work.finish("rows", {"buckets": buckets})
    return buckets


def write_rows(run: RowRun, encoding: FeatureEncoding, found: Mapping[str, Any], buckets: int) -> dict[str, Any]:
    """Write the whole data set to the work folder's ``dataset``; ``found`` is the first reading's note.

    Returns:
        The figures for the verb's result, which the manifest holds too.
    """
    target = NumberTarget(**found["target"]) if found["target"] else None
    classes = {} if target else classes_of(list(found["labels"]))
    layout = run.layout
    numbers = list(layout.numbers) if layout else None
    categories = zip(layout.categorical, encoding.categories, strict=True) if layout else ()
    figures: dict[str, Any] = {
        "train_samples": found["rows"][0],
        "test_samples": found["rows"][1],
        **({"dev_samples": found["rows"][2]} if found["rows"][2] else {}),
        "features": encoding.features,
        "classes": 1 if target else max(classes.values()) + 1,
        "normalize": run.request.normalize,
        "source": ", ".join(source.name for source in run.sources[:3]) + (", …" if len(run.sources) > 3 else ""),
        "bad_rows": found["bad_rows"],
        "dropped_rows": found["dropped_rows"],
        **({} if target else {"majority_share": max(found["class_counts"]["train"].values()) / found["rows"][0]}),
        **({"label_mean": target.mean, "label_deviation": target.deviation} if target else {}),
        **({"findings": found["findings"]} if found["findings"] else {}),
    }
    more = {
        "request": run.work.identity,
        "figures": figures,
        "labels": {label: classes[label] for label in sorted(classes)},
        "class_counts": found["class_counts"],
        "target": found["target"],
        "columns": {"numeric": numbers, **found["columns"]} if len(found["columns"]["mean"]) <= 10_000 else None,
        "categories": {name: list(names) for name, names in categories},  # in the file sorted by name
        **({"categorical": list(layout.categorical), "encoding": run.request.encoding} if layout else {}),
        "source_files": [
            {"name": source.name, "bytes": source.bytes, "sha256": sha256}
            for source, sha256 in zip(run.sources, found["sha256"], strict=True)
        ],
        "source_sha256": sha256_of(" ".join(found["sha256"]).encode()),
    }
    counts = {name: rows for name, rows in zip(SPLITS, found["rows"], strict=True) if rows or name != DEV}
    pieces = {
        name: read_rows(run.work.folder / "rows", split, buckets, encoding.features, run.request.seed, target is None)
        for split, name in enumerate(SPLITS)
    }
    folder = write_dataset(
        run.work.fresh("dataset"), pieces, counts, encoding.features,
        classes=figures["classes"], normalize=run.request.normalize, source=figures["source"], more=more,
    )  # fmt: skip
    if layout is not None:
        names = {number: label for label, number in classes.items()}
        every = () if target else tuple(names.get(number, str(number)) for number in range(figures["classes"]))
        write_preprocessing(folder, TablePreprocessing(layout, encoding, every, target))
    return figures
