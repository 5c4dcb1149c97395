"""Second step of preprocessing text: records → sequences, one output file after the other."""

from collections.abc import Iterable, Mapping
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from rdukit.files.atomic import atomic_target
from rdukit_modelbox.context import Progress
from rdukit_modelbox.legal import ParameterValue
from rdukit_modelbox.preprocessing.pace import ProgressReporter
from rdukit_modelbox.preprocessing.packing import PackedRows, Packer
from rdukit_modelbox.preprocessing.statistics import TokenStatistics, without_prompt_only
from rdukit_modelbox.preprocessing.text_run import TextRun
from rdukit_modelbox.preprocessing.token_shards import TokenFile
from rdukit_modelbox.preprocessing.tokenizer import (
    TextTokenizer,
    byte_level_tokenizer,
    learn_tokenizer,
    own_tokenizer,
)
from rdukit_modelbox.preprocessing.tokenizing import RecordTokenizer, TokenBatch, texts_of

#: Kinds of output files that hold sequences; the others stay text.
SEQUENCES: Final = ("train", "dev")
#: Records and bytes that a tokenizer is learned from, at most.
LEARN_RECORDS: Final = 100_000
LEARN_BYTES: Final = 16 << 20


def make_tokenizer(run: TextRun, parameters: Mapping[str, ParameterValue]) -> TextTokenizer:
    """The tokenizer when none is given: of bytes, or learned from the first training file's records."""
    if parameters["tokenizer"] == "byte_level":
        return byte_level_tokenizer()
    path = run.work.folder / "tokenizer.json"
    if not path.exists():
        run.context.progress(Progress("learn tokenizer", 0, 1))
        first = (record for batch in run.records_of(0) for record in batch)
        held = 0
        texts = []
        for text in texts_of(islice(first, LEARN_RECORDS), run.request.policy):
            texts.append(text)
            held += len(text)
            if held > LEARN_BYTES:
                break
        learned = learn_tokenizer(texts, int(parameters["vocab_size"]))
        with atomic_target(path) as temporary:
            temporary.write_bytes(learned.json)
        run.context.log(f"learned a vocabulary of {learned.vocabulary} from {held} characters")
        return learned
    return own_tokenizer(Tokenizer.from_file(str(path)))


def write_sequences(run: TextRun, tokenizer: TextTokenizer, spilled: Mapping[str, Any]) -> list[TokenStatistics]:
    """Tokenize and pack each output file that is not finished.

    Returns:
        The statistics of all files, in the splits' order; those that stay text only count articles.
    Raises:
        Cancelled: between two batches.
    """
    pace = ProgressReporter(run.context, "tokenize", sum(spilled["articles"]))
    found: dict[int, TokenStatistics] = {}
    unfinished = []
    for file, split in enumerate(run.splits):
        note = run.work.find(split.name) if split.kind in SEQUENCES else {"articles": spilled["articles"][file]}
        if note is None:
            unfinished.append(file)
        else:
            found[file] = TokenStatistics(**note)
            pace.skip(found[file].articles)
    worker = RecordTokenizer(tokenizer, run.request.policy)
    try:
        # One stream over all files, so that the tokenizer works on the next file while one is closed.
        stream = worker.tokens_of((file, batch) for file in unfinished for batch in run.records_of(file))
        for file, batches in groupby(stream, key=lambda batch: batch.file):
            split = run.splits[file]
            with atomic_target(run.sequences_path(split)) as temporary:
                found[file] = _write_file(run, temporary, tokenizer, batches, pace)
            run.work.finish(split.name, found[file].to_json())
    finally:
        worker.close()
    return [found[file] for file in range(len(run.splits))]


def _write_file(
    run: TextRun, path: Path, tokenizer: TextTokenizer, batches: Iterable[TokenBatch], pace: ProgressReporter
) -> TokenStatistics:
    request = run.request
    statistics = TokenStatistics()
    packer = Packer(request.max_seq_length, request.packing, tokenizer.pad_id)
    with TokenFile(path, request.max_seq_length) as target:

        def keep(rows: PackedRows) -> None:
            kept = rows if request.policy.keep_prompt_only_sequences else without_prompt_only(rows, statistics)
            statistics.count_rows(kept)
            target.add(kept)

        for batch in batches:
            statistics.articles += batch.records
            statistics.count_units(batch.tokens)
            keep(packer.pack(batch.tokens))
            pace.count(batch.records)
        keep(packer.finish())
    statistics.tokens_dropped_from_packing = packer.dropped_tokens
    statistics.cut_units = packer.cut_units
    return statistics
