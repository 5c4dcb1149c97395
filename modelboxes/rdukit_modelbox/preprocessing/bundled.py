"""Default data of a preprocess: a corpus, or the bundled digits as a table."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rdukit.files.atomic import remove_tree
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_zoo.datasets.corpora import read_corpus
from rdukit_zoo.datasets.digits import SIDE, Bytes, load_bundled

#: Side in pixels of a table's digits: each pixel is the mean of 4 x 4 of the 32 x 32 ones, margin included.
TABLE_SIDE: Final = 8


@contextmanager
def with_data(
    inputs: Mapping[str, Path], output: Path, name: str, write: Callable[[Path], object]
) -> Iterator[Mapping[str, Path]]:
    """Yield the inputs with ``data`` among them: the caller's, or a folder ``name`` that ``write`` fills for the block.

    Its files have fixed times, so a further attempt continues a killed one.
    """
    if "data" in inputs:
        yield inputs
        return
    bundled = output / ".bundled"
    folder = bundled / name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write(folder)
        for path in folder.iterdir():
            os.utime(path, (0, 0))
        yield {**inputs, "data": folder}
    finally:
        remove_tree(bundled)


def write_corpus(name: str, folder: Path) -> None:
    """Write a corpus of ``rdukit_zoo.datasets.corpora`` as text files."""
    for file, text in read_corpus(name).items():
        (folder / file).write_text(text, encoding="utf-8")


def write_digit_table(folder: Path) -> None:
    """Write the bundled digits as ``train.npz`` and ``test.npz``: 64 grey values a row, and its class."""
    digits = load_bundled()
    for split, images, labels in (
        ("train", digits.train_images, digits.train_labels),
        ("test", digits.test_images, digits.test_labels),
    ):
        np.savez(folder / f"{split}.npz", features=shrink(images), labels=labels)


def shrink(images_NHW: Bytes) -> NDArray[np.float32]:
    """Return images [N, 28, 28] as rows [N, 64] of means."""
    margin, block = (4 * TABLE_SIDE - SIDE) // 2, 4
    padded = np.pad(images_NHW.astype(np.float32), ((0, 0), (margin, margin), (margin, margin)))
    blocks = padded.reshape(len(padded), TABLE_SIDE, block, TABLE_SIDE, block)
    rows_NF: NDArray[np.float32] = blocks.mean((2, 4), dtype=np.float32).reshape(len(padded), -1)
    return rows_NF


def write_passages(parameters: Mapping[str, ParameterValue], folder: Path) -> None:
    """Write passages of a corpus as a table of texts, ``samples`` of them, drawn by ``seed``.

    With ``num_classes`` they come from that many of its longest texts, whose numbers are the classes.
    """
    texts = sorted(read_corpus(str(parameters["corpus"])).items(), key=lambda pair: (-len(pair[1]), pair[0]))
    size = int(parameters["context_length"]) - 2  # tokens of the beginning and of the end stand around a passage
    passages = []
    for number, (_, text) in enumerate(texts[: int(parameters.get("num_classes", len(texts)))]):
        plain = text.encode("ascii", "replace").decode()
        passages += [{"text": plain[at : at + size], "label": number} for at in range(0, len(plain) - size + 1, size)]
    order = np.random.default_rng(int(parameters["seed"])).permutation(len(passages))[: int(parameters["samples"])]
    lines = [json.dumps(passages[index]) for index in order.tolist()]
    (folder / "passages.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
