"""Last step of preprocessing rows: the buckets become the data set."""

from collections.abc import Mapping
from typing import Any

from rdukit.files.atomic import sha256_of
from rdukit_modelbox.datasets import write_dataset
from rdukit_modelbox.preprocessing.columns import Encoder, classes_of
from rdukit_modelbox.preprocessing.row_run import SPLITS, RowRun
from rdukit_modelbox.preprocessing.row_spill import read_rows


def write_rows(run: RowRun, encoder: Encoder, found: Mapping[str, Any], buckets: int) -> dict[str, Any]:
    """Write the whole data set to the work folder's ``dataset``; ``found`` is the first reading's note.

    Returns:
        The figures for the verb's result, which the manifest holds too.
    """
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
        "request": run.work.identity,
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
        name: read_rows(run.work.folder / "rows", split, buckets, encoder.features, run.request.seed)
        for split, name in enumerate(SPLITS)
    }
    write_dataset(
        run.work.fresh("dataset"), pieces, dict(zip(SPLITS, found["rows"], strict=True)), encoder.features,
        classes=figures["classes"], normalize=run.request.normalize, source=figures["source"], more=more,
    )  # fmt: skip
    return figures
