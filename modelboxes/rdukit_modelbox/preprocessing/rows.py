"""Preprocess of rows: tables, arrays and images → normalised float32 features and a class a row.

Two readings of the input: the first checks it and gathers figures, the second encodes. Neither holds more in memory
than a few blocks and one bucket. Axes: N rows, F features.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument, NotFound
from rdukit.files import sha256_of, sha256_of_file
from rdukit_modelbox.context import VerbContext, VerbResult
from rdukit_modelbox.datasets import load_dataset, read_manifest, write_dataset
from rdukit_modelbox.legal import ParameterValue
from rdukit_modelbox.preprocessing.array_rows import read_hdf5, read_images, read_npz
from rdukit_modelbox.preprocessing.assignment import Assignment
from rdukit_modelbox.preprocessing.bad_rows import BadRows
from rdukit_modelbox.preprocessing.columns import ColumnFigures, Encoder, NameCounts, RowBlock, classes_of
from rdukit_modelbox.preprocessing.pace import KILOBYTE, Pace
from rdukit_modelbox.preprocessing.row_request import RowRequest
from rdukit_modelbox.preprocessing.row_spill import BUCKET_BYTES, RowSpill, read_rows, row_type
from rdukit_modelbox.preprocessing.sources import Format, SourceFile, find_sources
from rdukit_modelbox.preprocessing.table_rows import Layout, find_layout, read_table
from rdukit_modelbox.preprocessing.work_folder import WorkFolder, identity_of

ROW_FORMATS: Final = (Format.CSV, Format.JSONL, Format.PARQUET, Format.NPZ, Format.HDF5, Format.IMAGES)
TABLES: Final = (Format.CSV, Format.JSONL, Format.PARQUET)
SPLITS: Final = ("train", "test")


@dataclass(frozen=True, slots=True)
class RowRun:
    """One attempt."""

    context: VerbContext
    request: RowRequest
    sources: Sequence[SourceFile]
    #: Split that each source's name says, if names say one.
    given: Mapping[str, int] | None
    layout: Layout | None

    def blocks(self, bad: BadRows, stage: str) -> Iterator[tuple[RowBlock, NDArray[np.int64], NDArray[np.int64]]]:
        """Each block, and its rows' splits and random numbers for buckets, the same in each reading."""
        pace = Pace(self.context, stage, sum(source.bytes for source in self.sources), KILOBYTE)
        ratio = self.request.test_ratio
        shares = (1.0,) if self.given is not None or ratio == 0 else (1 - ratio, ratio)
        assignment = Assignment(shares, 1 << 30, self.request.seed)
        rows = before = 0
        for names, size, blocks in self._readers(bad):
            for block in blocks:
                splits_N, random_N = assignment.take(len(block))
                if self.given is not None:
                    splits_N = np.full(len(block), self.given[names[0]], np.int64)
                rows += len(block)
                yield block, splits_N, random_N
                pace.tell(before + block.consumed, rows)
            before += size

    def _readers(self, bad: BadRows) -> Iterator[tuple[list[str], int, Iterator[RowBlock]]]:
        if self.sources[0].format == Format.IMAGES:
            for split in range(len(SPLITS)):
                chosen = [s for s in self.sources if self.given is None or self.given[s.name] == split]
                if chosen and (split == 0 or self.given is not None):
                    names = [source.name for source in chosen]
                    yield names, sum(source.bytes for source in chosen), read_images(chosen, self.request, bad)
            return
        for source in self.sources:
            if self.layout is not None:
                yield [source.name], source.bytes, read_table(source, self.layout, self.request, bad)
            elif source.format == Format.NPZ:
                yield [source.name], source.bytes, read_npz(source, self.request, bad)
            else:
                yield [source.name], source.bytes, read_hdf5(source, self.request, bad)


def preprocess_rows(
    context: VerbContext, parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path], output: Path
) -> VerbResult:
    """Write ``<output>/dataset``: features and classes of both splits, and the manifest.

    Raises:
        NotFound, InvalidArgument: an input is missing or cannot be used; names file, line, column and what is legal.
        Cancelled: between two blocks; figures of a finished first reading are kept for the next attempt.
    """
    request = RowRequest.of(parameters)
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
        context.log(f"{folder} is finished already, from the same files and parameters")
        return VerbResult(figures, {"dataset": folder})
    work = WorkFolder(work_folder, identity)
    layout = find_layout(sources[0], request) if sources[0].format in TABLES else None
    run = RowRun(context, request, sources, _given_splits(sources), layout)
    found = work.find("figures") or _gather(run, work)
    encoder = Encoder(
        request, ColumnFigures.from_json(found["columns"]), tuple(tuple(sorted(names)) for names in found["categories"])
    )
    _check_model(context, encoder.features, found)
    buckets = _encode(run, work, encoder, found)
    figures = _write(run, work, encoder, found, buckets)
    work.hand_over("dataset", folder)
    context.log(
        f"{figures['train_samples']} rows to train, {figures['test_samples']} to test, {figures['features']} features"
    )
    return VerbResult(figures, {"dataset": folder})


def _gather(run: RowRun, work: WorkFolder) -> dict[str, Any]:
    """First reading: check every row, count labels and names, and the training rows' figures."""
    bad = BadRows(run.request.skips_bad_rows)
    figures: ColumnFigures | None = None
    names: list[NameCounts] = []
    labels = NameCounts(f"the label {run.request.label_column!r}")
    by_split = [NameCounts("a split's label") for _ in SPLITS]
    counts = [0, 0]
    with ThreadPoolExecutor(1, thread_name_prefix="digest") as thread:
        digests = [thread.submit(sha256_of_file, source.path) for source in run.sources]
        try:
            for block, splits_N, _ in run.blocks(bad, "read"):
                if figures is None:
                    figures = ColumnFigures.of(block.numbers_NC.shape[1])
                    categorical = run.layout.categorical if run.layout else ()
                    names = [NameCounts(f"column {name!r}") for name in categorical]
                if block.numbers_NC.shape[1] != len(figures.count_C):
                    raise InvalidArgument(
                        f"rows have {len(figures.count_C)} and {block.numbers_NC.shape[1]} numbers; legal: one width"
                    )
                kept_N = _within_limit(run.request.limit, counts, splits_N)
                figures.add(block.numbers_NC[kept_N & (splits_N == 0)])
                for column, values in zip(names, block.names_KN, strict=True):
                    column.add([value for value, kept in zip(values, kept_N.tolist(), strict=True) if kept])
                for label, split, kept in zip(block.labels_N, splits_N.tolist(), kept_N.tolist(), strict=True):
                    if kept:
                        by_split[split].counts[label] = by_split[split].counts.get(label, 0) + 1
                labels.add([label for label, kept in zip(block.labels_N, kept_N.tolist(), strict=True) if kept])
        except BaseException:
            thread.shutdown(wait=False, cancel_futures=True)
            raise
        sha256 = [digest.result() for digest in digests]
    if figures is None or counts[0] == 0:
        raise InvalidArgument(f"no row can be used for training in {', '.join(s.name for s in run.sources[:5])}")
    if bad.count or bad.dropped:
        run.context.log(f"left out {bad.count} bad rows and {bad.dropped} with missing values: {bad.examples[:3]}")
    note = {
        "columns": figures.to_json(),
        "categories": [column.counts for column in names],
        "labels": labels.counts,
        "class_counts": {kind: split.counts for kind, split in zip(SPLITS, by_split, strict=True)},
        "rows": counts,
        "bad_rows": bad.count,
        "bad_examples": bad.examples,
        "dropped_rows": bad.dropped,
        "sha256": sha256,
    }
    work.finish("figures", note)
    return note


def _encode(run: RowRun, work: WorkFolder, encoder: Encoder, found: Mapping[str, Any]) -> int:
    """Second reading: encoded rows on the disk. Returns the buckets of each split."""
    largest = max(found["rows"]) * row_type(encoder.features).itemsize
    buckets = 1 if run.request.seed is None else max(1, -(-largest // BUCKET_BYTES))
    if work.find("rows") is None:
        classes = classes_of(list(found["labels"]))
        spill = RowSpill(work.fresh("rows"), len(SPLITS), buckets, encoder.features)
        counts = [0, 0]
        for block, splits_N, random_N in run.blocks(BadRows(skips=True), "encode"):
            kept_N = _within_limit(run.request.limit, counts, splits_N)
            labels_N = np.array([classes.get(label, -1) for label in block.labels_N], np.int64)[kept_N]
            if not kept_N.all():
                chosen = tuple([v for v, kept in zip(c, kept_N.tolist(), strict=True) if kept] for c in block.names_KN)
                block = RowBlock(block.numbers_NC[kept_N], chosen, [""] * len(labels_N), block.consumed)
            spill.add(encoder.encode(block), labels_N, splits_N[kept_N], random_N[kept_N] % buckets)
        spill.flush()
        if counts != found["rows"]:
            raise InvalidArgument("the input changed while it was read; preprocess again")
        work.finish("rows", {"buckets": buckets})
    return buckets


def _write(run: RowRun, work: WorkFolder, encoder: Encoder, found: Mapping[str, Any], buckets: int) -> dict[str, Any]:
    classes = classes_of(list(found["labels"]))
    numeric = list(run.layout.numeric) if run.layout else None
    categorical = list(run.layout.categorical) if run.layout else []
    figures: dict[str, Any] = {
        "train_samples": found["rows"][0],
        "test_samples": found["rows"][1],
        "features": encoder.features,
        "classes": max(classes.values()) + 1,
        "normalize": run.request.normalize,
        "source": ", ".join(source.name for source in run.sources[:3]) + (", …" if len(run.sources) > 3 else ""),
        "bad_rows": found["bad_rows"],
        "dropped_rows": found["dropped_rows"],
    }
    more = {
        "request": work.identity,
        "figures": figures,
        "labels": {label: classes[label] for label in sorted(classes)},
        "class_counts": found["class_counts"],
        "columns": {"numeric": numeric, **found["columns"]} if len(found["columns"]["mean"]) <= 10_000 else None,
        "categories": dict(zip(categorical, (sorted(names) for names in found["categories"]), strict=True)),
        "source_files": [
            {"name": source.name, "bytes": source.bytes, "sha256": sha256}
            for source, sha256 in zip(run.sources, found["sha256"], strict=True)
        ],
        "source_sha256": sha256_of(" ".join(found["sha256"]).encode()),
    }
    pieces = {
        name: read_rows(work.folder / "rows", split, buckets, encoder.features, run.request.seed)
        for split, name in enumerate(SPLITS)
    }
    write_dataset(
        work.fresh("dataset"), pieces, dict(zip(SPLITS, found["rows"], strict=True)), encoder.features,
        classes=figures["classes"], normalize=run.request.normalize, source=figures["source"], more=more,
    )  # fmt: skip
    return figures


def _within_limit(limit: int, counts: list[int], splits_N: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rows are kept so that no split gets more than ``limit``; counts them."""
    kept_N = np.ones(len(splits_N), np.bool_)
    for split in range(len(counts)):
        is_mine_N = splits_N == split
        if limit:
            kept_N &= ~is_mine_N | (np.cumsum(is_mine_N) + counts[split] <= limit)
        counts[split] += int((is_mine_N & kept_N).sum())
    return kept_N


def _given_splits(sources: Sequence[SourceFile]) -> dict[str, int] | None:
    """The split that each file's first folder or its own name says; None unless all say one and one says train."""
    found = {}
    for source in sources:
        path = PurePosixPath(source.name)
        first = path.parts[0].lower() if len(path.parts) > 1 else path.name.lower()
        kind = next((split for split, name in enumerate(SPLITS) if first.startswith(name)), None)
        if kind is None:
            return None
        found[source.name] = kind
    return found if set(found.values()) == {0, 1} else None


def _check_model(context: VerbContext, features: int, found: Mapping[str, Any]) -> None:
    sizes = context.box.sizes
    wanted, most = sizes.get("num_features"), sizes.get("num_classes")
    classes = max(classes_of(list(found["labels"])).values()) + 1
    if wanted is not None and features != wanted:
        raise InvalidArgument(
            f"the rows have {features} features, box {context.box.name} takes {wanted}; legal: other columns, or "
            f"images of another size"
        )
    if most is not None and classes > most:
        raise InvalidArgument(f"the labels have {classes} classes, box {context.box.name} has {most}")


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
