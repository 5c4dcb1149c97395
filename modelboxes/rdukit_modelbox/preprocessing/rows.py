"""Preprocess of rows: tables, arrays and images → normalised float32 features and a class a row.

Two readings of the input: the first checks it and gathers figures, the second encodes. Neither holds more in memory
than a few blocks and one bucket.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument, NotFound
from rdukit_modelbox.context import VerbContext, VerbResult
from rdukit_modelbox.datasets import load_dataset, read_manifest
from rdukit_modelbox.legal import ParameterValue
from rdukit_modelbox.preprocessing.columns import ColumnFigures, Encoder, classes_of
from rdukit_modelbox.preprocessing.row_encode_step import encode_rows
from rdukit_modelbox.preprocessing.row_figures_step import gather_figures
from rdukit_modelbox.preprocessing.row_output_step import write_rows
from rdukit_modelbox.preprocessing.row_request import RowPreprocessRequest
from rdukit_modelbox.preprocessing.row_run import TABLES, RowRun
from rdukit_modelbox.preprocessing.sources import Format, find_sources
from rdukit_modelbox.preprocessing.work_folder import WorkFolder, identity_of

ROW_FORMATS: Final = (*TABLES, Format.NPZ, Format.HDF5, Format.IMAGES)


def preprocess_rows(
    context: VerbContext, parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path], output: Path
) -> VerbResult:
    """Write ``<output>/dataset``: features and classes of both splits, and the manifest.

    Raises:
        NotFound, InvalidArgument: an input is missing or cannot be used; names file, line, column and what is legal.
        Cancelled: between two blocks; figures of a finished first reading are kept for the next attempt.
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
        context.log(f"{folder} is finished already, from the same files and parameters")
        return VerbResult(figures, {"dataset": folder})
    run = RowRun.begin(context, request, sources, WorkFolder(work_folder, identity))
    found = run.work.find("figures") or gather_figures(run)
    encoder = Encoder(
        request, ColumnFigures.from_json(found["columns"]), tuple(tuple(sorted(names)) for names in found["categories"])
    )
    _check_model(context, encoder.features, found)
    figures = write_rows(run, encoder, found, encode_rows(run, encoder, found))
    run.work.hand_over("dataset", folder)
    context.log(
        f"{figures['train_samples']} rows to train, {figures['test_samples']} to test, {figures['features']} features"
    )
    return VerbResult(figures, {"dataset": folder})


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
