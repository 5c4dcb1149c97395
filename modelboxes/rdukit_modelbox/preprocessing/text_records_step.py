"""First step of preprocessing text: read and check all records, and spread them over the output files."""

from typing import Any

from rdukit.errors import IllegalValue, InvalidArgument
from rdukit_modelbox.preprocessing.articles import make_decoder
from rdukit_modelbox.preprocessing.assignment import Assignment
from rdukit_modelbox.preprocessing.bad_rows import RowErrors
from rdukit_modelbox.preprocessing.digests import digests_meanwhile
from rdukit_modelbox.preprocessing.pace import KILOBYTE, ProgressReporter
from rdukit_modelbox.preprocessing.spill import Spill
from rdukit_modelbox.preprocessing.text_records import read_records
from rdukit_modelbox.preprocessing.text_run import TextRun


def spill_records(run: TextRun) -> dict[str, Any]:
    """Put the records on the disk by output file, and digest the sources on another core meanwhile.

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
        run.context.log(f"left out {bad.count} bad rows, such as {'; '.join(bad.examples[:3])}")
    if records == 0:
        raise InvalidArgument(f"no record can be used in {', '.join(source.name for source in run.sources[:5])}")
    if (spill.counts_F == 0).any():
        empty = run.splits[int((spill.counts_F == 0).argmax())]
        raise IllegalValue(
            f"{records} records do not fill {len(run.splits)} files: {empty.name} has none; legal: fewer "
            f"num_training_splits, larger dev_ratio and test_ratio or 0, or more records",
            records=records, files=len(run.splits),
        )  # fmt: skip
    note = {
        "records": records, "articles": spill.counts_F.tolist(), "buckets": run.buckets,
        "bad_rows": bad.count, "bad_examples": bad.examples, "sha256": found,
    }  # fmt: skip
    run.work.finish("records", note)
    return note
