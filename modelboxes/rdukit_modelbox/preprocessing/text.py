"""Preprocessing of text: files become records by output file on disk, then sequences, then evened files.

The first step reads and checks all records. Each step leaves a note, so a further attempt continues after the last
finished file. A step holds at most a few batches and one bucket of records in memory.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rdukit.errors import IllegalValue, InvalidArgument, NotFound
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.preprocessing.articles import make_decoder
from rdukit_modelbox.preprocessing.external_shuffle import Assignment, Spill
from rdukit_modelbox.preprocessing.packing import Packer
from rdukit_modelbox.preprocessing.progress import (
    KILOBYTE,
    ProgressReporter,
    WorkFolder,
    digests_meanwhile,
    identity_of,
)
from rdukit_modelbox.preprocessing.sources import RowErrors, find_sources
from rdukit_modelbox.preprocessing.text_output import make_tokenizer, write_dataset, write_sequences
from rdukit_modelbox.preprocessing.text_records import TEXT_FORMATS, read_records
from rdukit_modelbox.preprocessing.text_run import TextPreprocessRequest, TextRun
from rdukit_modelbox.preprocessing.token_dataset import KIND, load_token_dataset
from rdukit_modelbox.preprocessing.tokenizer import load_tokenizer
from rdukit_modelbox.verbs.context import Progress, VerbContext, VerbResult


def preprocess_text(
    context: VerbContext, parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path], output: Path
) -> VerbResult:
    """Write ``<output>/dataset``: sequences, text to test with, tokenizer, metadata and manifest.

    Raises:
        NotFound, InvalidArgument: an input is missing or cannot be used; names file, line and what is legal.
        IllegalValue: more files than the input can fill.
        Cancelled: between two batches; the next attempt reuses finished parts.
    """
    request = TextPreprocessRequest.of(parameters)
    Packer(request.max_seq_length, request.packing, 0)  # refuses an illegal config before anything is read
    sources = find_sources(inputs["data"], str(parameters["pattern"]), str(parameters["format"]), TEXT_FORMATS)
    given = load_tokenizer(inputs["tokenizer"], str(parameters["end_of_text"])) if "tokenizer" in inputs else None
    identity = {
        "kind": KIND,
        "request": asdict(request),
        "sources": [source.to_json() for source in sources],
        "tokenizer": given.digest if given else [parameters["tokenizer"], parameters["vocab_size"]],
    }
    folder, work_folder = output / "dataset", output / ".preprocess"
    figures = _find_finished(folder, identity_of(identity))
    if figures is not None and not work_folder.exists():
        context.log(f"{folder} is already complete, from the same files and parameters")
        return VerbResult(figures, {"dataset": folder})
    run = TextRun.begin(context, request, sources, WorkFolder(work_folder, identity))
    spilled = run.work.find("records") or spill_records(run)
    tokenizer = given or make_tokenizer(run, parameters)
    statistics = write_sequences(run, tokenizer, spilled)
    context.check_cancelled()
    context.progress(Progress("write", 0, 1))
    figures = write_dataset(run, run.work.fresh("dataset"), tokenizer, spilled, statistics, parameters)
    run.work.hand_over("dataset", folder)
    context.progress(Progress("write", 1, 1))
    context.log(
        f"{figures['train_sequences']} sequences to train, {figures['dev_sequences']} to evaluate, "
        f"{figures['train_tokens']} tokens, padding {figures['padding_share']:.1%}"
    )
    return VerbResult(figures, {"dataset": folder})


def _find_finished(folder: Path, identity: str) -> dict[str, Any] | None:
    """Return the figures of a finished data set that the same request made."""
    try:
        dataset = load_token_dataset(folder)
    except (NotFound, InvalidArgument):
        return None
    dataset.close()
    if dataset.manifest.get("request") != identity:
        return None
    figures: dict[str, Any] = dataset.manifest["figures"]
    return figures


def spill_records(run: TextRun) -> dict[str, Any]:
    """Write the records to disk by output file, while another core digests the sources.

    Returns:
        The step's note: ``articles`` of each file, ``sha256`` of each source, numbers of records and bad rows.
    Raises:
        InvalidArgument: a row cannot be used, or none can.
        IllegalValue: fewer records than output files.
        Cancelled: between two blocks.
    """
    request = run.request
    bad = RowErrors(request.skips_bad_rows)
    spill = Spill(run.work.fresh("records"), len(run.splits), run.buckets)
    assignment = Assignment(tuple(split.share for split in run.splits), run.buckets, request.seed)
    decoder = make_decoder(request.policy)
    pace = ProgressReporter(run.context, "read", sum(source.bytes for source in run.sources), KILOBYTE)
    records = before = 0
    with digests_meanwhile(run.sources) as digests:
        for source in run.sources:
            for block in read_records(source, request.policy, decoder, bad):
                spill.add(block.records, *assignment.take(len(block.records)))
                records += len(block.records)
                pace.tell(before + block.consumed, records)
            before += source.bytes
        spill.flush()
        found = digests()
    if bad.count:
        run.context.log(f"omitted {bad.count} bad rows, such as {'; '.join(bad.examples[:3])}")
    if records == 0:
        raise InvalidArgument(f"no record can be used in {', '.join(source.name for source in run.sources[:5])}")
    if (spill.counts_F == 0).any():
        empty = run.splits[int((spill.counts_F == 0).argmax())]
        raise IllegalValue(
            f"{records} records do not fill {len(run.splits)} files: {empty.name} has none; lower "
            "num_training_splits, set larger dev_ratio and test_ratio or 0, or add records",
            records=records, files=len(run.splits),
        )  # fmt: skip
    note = {
        "records": records, "articles": spill.counts_F.tolist(), "buckets": run.buckets,
        "bad_rows": bad.count, "bad_examples": bad.examples, "sha256": found,
    }  # fmt: skip
    run.work.finish("records", note)
    return note
