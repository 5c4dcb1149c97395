"""Second step of preprocessing text: records → sequences, one output file after the other."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from rdukit.files import atomic_target
from rdukit_modelbox.context import Progress
from rdukit_modelbox.legal import ParameterValue
from rdukit_modelbox.preprocessing.pace import Pace
from rdukit_modelbox.preprocessing.packing import Packer, Rows
from rdukit_modelbox.preprocessing.statistics import TokenStatistics, without_prompt_only
from rdukit_modelbox.preprocessing.text_run import TextRun
from rdukit_modelbox.preprocessing.token_shards import TokenFile
from rdukit_modelbox.preprocessing.tokenizer import (
    TextTokenizer,
    byte_level_tokenizer,
    learn_tokenizer,
    own_tokenizer,
)
from rdukit_modelbox.preprocessing.tokenizing import RecordTokenizer, texts_of

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
    pace = Pace(run.context, "tokenize", sum(spilled["articles"]))
    done = made = 0
    statistics = []
    worker = RecordTokenizer(tokenizer, run.request.policy)
    try:
        for file, split in enumerate(run.splits):
            articles = int(spilled["articles"][file])
            if split.kind not in SEQUENCES:
                statistics.append(TokenStatistics(articles=articles))
                continue
            note = run.work.find(split.name)
            if note is None:
                found = TokenStatistics(articles=articles)
                with atomic_target(run.sequences_path(split)) as temporary:
                    _write_file(run, temporary, file, tokenizer, worker, found, pace, (done, made))
                note = found.to_json()
                run.work.finish(split.name, note)
                made += articles
            else:
                pace.skip(articles)
            statistics.append(TokenStatistics(**note))
            done += articles
            pace.tell(done, made)
    finally:
        worker.close()
    return statistics


def _write_file(
    run: TextRun,
    path: Path,
    file: int,
    tokenizer: TextTokenizer,
    worker: RecordTokenizer,
    statistics: TokenStatistics,
    pace: Pace,
    before: tuple[int, int],
) -> None:
    request = run.request
    packer = Packer(request.max_seq_length, request.packing, tokenizer.pad_id)
    done, made = before
    with TokenFile(path, request.max_seq_length) as target:

        def keep(rows: Rows) -> None:
            kept = rows if request.policy.keep_prompt_only_sequences else without_prompt_only(rows, statistics)
            statistics.count_rows(kept)
            target.add(kept)

        for batch in worker.tokens_of(run.records_of(file)):
            statistics.count_units(batch.tokens)
            keep(packer.pack(batch.tokens))
            done, made = done + batch.records, made + batch.records
            pace.tell(done, made)
        keep(packer.finish())
    statistics.tokens_dropped_from_packing = packer.dropped_tokens
    statistics.cut_units = packer.cut_units
