"""The files beside the sequences: ``metadata.yaml``, checksums, ``manifest.json``."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from rdukit.files.atomic import sha256_of, sha256_of_file, write_atomic
from rdukit_modelbox.preprocessing.statistics import METADATA_NAMES, TokenStatistics
from rdukit_modelbox.preprocessing.tokenizer import FILE_NAME, TextTokenizer

MANIFEST: Final = "manifest.json"
METADATA: Final = "metadata.yaml"
CHECKSUMS: Final = "sha256/files_metadata.json"
FORMAT: Final = 1
KIND: Final = "tokens"


def metadata_of(
    length: int,
    tokenizer: TextTokenizer,
    rows: Mapping[str, Sequence[int]],
    test_files: int,
    statistics: Mapping[str, TokenStatistics],
) -> dict[str, object]:
    """What ``metadata.yaml`` says.

    Args:
        rows: sequences of each file of ``train`` and ``dev``.
    Source: generative_data_prep, README "Metadata Output File", and its ``pipeline``: the sums are prefixed with the
        split's name. ``vocab_size`` leaves out added tokens; ``tokenizer_model_type`` is a type of ``transformers``
        there and of ``tokenizers`` here.
    """
    named: dict[str, object] = {
        "max_seq_length": length,
        "token_type_ids": True,
        "vocab_size": tokenizer.tokenizer.get_vocab_size(with_added_tokens=False),
        "tokenizer_model_type": str(type(tokenizer.tokenizer.model)),
        "number_of_training_files": len(rows["train"]),
        "number_of_dev_files": len(rows["dev"]),
        "number_of_test_files": test_files,
        "max_batch_size_train": min(rows["train"]),
        "max_batch_size_dev": min(rows["dev"]) if rows["dev"] else None,
    }
    for kind, sums in statistics.items():
        named |= {f"{kind}_{name}": getattr(sums, name) for name in METADATA_NAMES}
    return named


def write_tokenizer(folder: Path, tokenizer: TextTokenizer) -> None:
    """``tokenizer/`` with the tokenizer and what lay beside it."""
    write_atomic(folder / "tokenizer" / FILE_NAME, tokenizer.json)
    for name, data in tokenizer.companions:
        write_atomic(folder / "tokenizer" / name, data)


def write_descriptions(folder: Path, metadata: Mapping[str, object], manifest: Mapping[str, Any]) -> None:
    """Metadata, then checksums of all files, then the manifest, which makes the folder a data set.

    Source: generative_data_prep: ``sha256/files_metadata.json`` names a file in a folder ``folder_file``.
    """
    write_atomic(folder / METADATA, yaml.safe_dump(dict(metadata), default_flow_style=False).encode())
    final = json.dumps(manifest, indent=2, sort_keys=True).encode() + b"\n"
    entries = [entry for split in manifest["splits"].values() for entry in split["files"]]
    known = {str(entry["name"]): str(entry["sha256"]) for entry in entries}
    sums: dict[str, object] = {MANIFEST: {"sha256": sha256_of(final), "size": len(final), "modified_time": 0.0}}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in {MANIFEST, CHECKSUMS}:
            state = path.stat()
            digest = known.get(name) or sha256_of_file(path)
            sums[name.replace("/", "_")] = {"sha256": digest, "size": state.st_size, "modified_time": state.st_mtime}
    write_atomic(folder / CHECKSUMS, json.dumps(sums).encode())
    write_atomic(folder / MANIFEST, final)
