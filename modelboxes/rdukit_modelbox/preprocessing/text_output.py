"""Output of a text preprocess: records become sequences, one output file after the other, then evened files."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Final

import msgspec
from tokenizers import Tokenizer

from rdukit.errors import IllegalValue
from rdukit.files.atomic import atomic_target, sha256_of, sha256_of_file
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.preprocessing.packing import PackedRows, Packer, TokenStatistics, without_prompt_only
from rdukit_modelbox.preprocessing.progress import ProgressReporter
from rdukit_modelbox.preprocessing.sources import Format
from rdukit_modelbox.preprocessing.text_run import TextRun
from rdukit_modelbox.preprocessing.token_dataset import (
    FORMAT,
    KIND,
    TokenFile,
    metadata_of,
    write_balanced,
    write_descriptions,
    write_tokenizer,
)
from rdukit_modelbox.preprocessing.tokenizer import (
    RecordTokenizer,
    TextTokenizer,
    TokenBatch,
    byte_level_tokenizer,
    codon_tokenizer,
    learn_tokenizer,
    own_tokenizer,
    texts_of,
)
from rdukit_modelbox.verbs.context import Progress


def write_dataset(
    run: TextRun,
    folder: Path,
    tokenizer: TextTokenizer,
    spilled: Mapping[str, Any],
    statistics: Sequence[TokenStatistics],
    parameters: Mapping[str, ParameterValue],
) -> dict[str, Any]:
    """Write the whole data set to ``folder``, which is not there yet.

    Returns:
        The figures for the verb's result, which the manifest holds too.
    Raises:
        IllegalValue: fewer sequences than files.
    """
    folder.mkdir(parents=True)
    sums: dict[str, TokenStatistics] = {}
    rows: dict[str, list[int]] = {}
    splits: dict[str, dict[str, Any]] = {}
    for kind in SEQUENCES:
        sums[kind], rows[kind], splits[kind] = _write_split(run, folder, kind, statistics)
    test = [file for file, split in enumerate(run.splits) if split.kind == "test"]
    splits["test"] = {
        "files": [_entry(folder, _write_test(run, folder, file), spilled["articles"][file]) for file in test]
    }
    write_tokenizer(folder, tokenizer)
    shards = " ".join(str(entry["sha256"]) for kind in SEQUENCES for entry in splits[kind]["files"])
    digest = sha256_of(f"{shards} {tokenizer.digest}".encode())
    figures = _figures(sums, rows, spilled, tokenizer) | {"digest": digest}
    manifest = {
        "format": FORMAT,
        "kind": KIND,
        "digest": digest,
        "request": run.work.identity,
        "figures": figures,
        "max_seq_length": run.request.max_seq_length,
        "parameters": dict(parameters),
        "splits": splits,
        "tokenizer": _tokenizer(tokenizer),
        "source": _source(run, spilled),
    }
    used = {kind: of for kind, of in sums.items() if of.articles}
    metadata = metadata_of(run.request.max_seq_length, tokenizer, rows, len(test), used)
    write_descriptions(folder, metadata, manifest)
    return figures


def _write_split(
    run: TextRun, folder: Path, kind: str, statistics: Sequence[TokenStatistics]
) -> tuple[TokenStatistics, list[int], dict[str, Any]]:
    """Return sums, rows of each file, and the manifest's entry of ``train`` or ``dev``."""
    sums = TokenStatistics()
    chosen = [(split, of) for split, of in zip(run.splits, statistics, strict=True) if split.kind == kind]
    for _, of in chosen:
        sums.add(of)
    if not chosen:
        return sums, [], {"files": []}
    _check_enough(run, kind, len(chosen), sums)
    targets = [folder / f"{split.name}.hdf5" for split, _ in chosen]
    sources = [run.sequences_path(split) for split, _ in chosen]
    rows = write_balanced(sources, targets, [of.sequences for _, of in chosen])
    files = [_entry(folder, path, count) for path, count in zip(targets, rows, strict=True)]
    figures = {**sums.to_json(), "padding_share": round(sums.padding_share, 6)}
    return sums, rows, {"files": files, "statistics": figures}


def _check_enough(run: TextRun, kind: str, files: int, sums: TokenStatistics) -> None:
    if sums.sequences < files:
        knob = "num_training_splits" if kind == "train" else "dev_ratio (0 makes none)"
        raise IllegalValue(
            f"{sums.sequences} sequences do not fill {files} {kind} files ({sums.cut_units} articles were too long "
            f"for max_seq_length {run.request.max_seq_length}, {sums.tokens_dropped_from_all_prompt} tokens were only "
            f"prompts); change {knob}, lower max_seq_length, or add records",
            sequences=sums.sequences, files=files,
        )  # fmt: skip


def _write_test(run: TextRun, folder: Path, file: int) -> Path:
    """Copy a test file as text: lines of the source, or lines of JSON for a table."""
    is_text = run.sources[0].format == Format.TXT
    path = folder / "test_files" / f"{run.splits[file].name}.{'txt' if is_text else 'jsonl'}"
    decode = msgspec.json.Decoder(str).decode
    with atomic_target(path) as temporary, temporary.open("wb") as stream:
        for batch in run.records_of(file):
            for record in batch:
                stream.write(decode(record).encode() if is_text else record.rstrip(b"\n") + b"\n")
    return path


def _figures(
    sums: Mapping[str, TokenStatistics],
    rows: Mapping[str, Sequence[int]],
    spilled: Mapping[str, Any],
    tokenizer: TextTokenizer,
) -> dict[str, Any]:
    train = sums["train"]
    return {
        "train_sequences": train.sequences,
        "dev_sequences": sums["dev"].sequences,
        "articles": spilled["records"],
        "train_tokens": train.prompt_tokens + train.completion_tokens,
        "padding_share": round(train.padding_share, 6),
        "longest_article_tokens": max(of.longest_unit for of in sums.values()),
        "bad_rows": spilled["bad_rows"],
        "vocab_size": tokenizer.vocabulary,
        "max_batch_size_train": min(rows["train"]),
    }


def _tokenizer(tokenizer: TextTokenizer) -> dict[str, object]:
    return {
        "sha256": sha256_of(tokenizer.json),
        "ids": tokenizer.vocabulary,
        "end_of_text": tokenizer.end_of_text,
        "end_of_text_id": tokenizer.end_id,
        "pad_id": tokenizer.pad_id,
    }


def _source(run: TextRun, spilled: Mapping[str, Any]) -> dict[str, object]:
    files = [
        {"name": source.name, "bytes": source.bytes, "sha256": sha256}
        for source, sha256 in zip(run.sources, spilled["sha256"], strict=True)
    ]
    return {
        "files": files,
        "sha256": sha256_of(" ".join(spilled["sha256"]).encode()),
        "records": spilled["records"],
        "bad_rows": spilled["bad_rows"],
        "bad_examples": spilled["bad_examples"],
    }


def _entry(folder: Path, path: Path, rows: int) -> dict[str, object]:
    return {
        "name": path.relative_to(folder).as_posix(),
        "rows": rows,
        "bytes": path.stat().st_size,
        "sha256": sha256_of_file(path),
    }


#: Kinds of output files that hold sequences; the others stay text.
SEQUENCES: Final = ("train", "dev")
#: Largest number of records and bytes from which a tokenizer is learned.
LEARN_RECORDS: Final = 100_000
LEARN_BYTES: Final = 16 << 20


def make_tokenizer(run: TextRun, parameters: Mapping[str, ParameterValue]) -> TextTokenizer:
    """Create a default tokenizer: of bytes, of codons, or learned from the first training file's records."""
    if parameters["tokenizer"] == "byte_level":
        return byte_level_tokenizer()
    if parameters["tokenizer"] == "codons":
        return codon_tokenizer()
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
        The statistics of all files, in the splits' order; files that stay text have only the number of articles.
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
