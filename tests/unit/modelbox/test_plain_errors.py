"""Damaged files and other models are refused in words of ours: what is wrong, what was expected, what to do next."""

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit.files.atomic import sha256_of, write_json_atomic
from rdukit.pef.checkpoint_files import find_differences
from rdukit_modelbox.artifacts.convert_checkpoint import convert_checkpoint
from rdukit_modelbox.preprocessing.array_rows import read_hdf5
from rdukit_modelbox.preprocessing.arrays import ArrayForm, open_arrays, write_arrays
from rdukit_modelbox.preprocessing.columns import RowPreprocessRequest
from rdukit_modelbox.preprocessing.datasets import Samples, load_dataset, save_dataset
from rdukit_modelbox.preprocessing.sources import Format, RowErrors, find_sources
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_modelbox.training.checkpoints import load_checkpoint
from rdukit_serving.shape import Shape, shape_of
from support import shows
from support.pefs.examples import training_pef

pytestmark = shows("training", "checkpoints")

#: Words of libraries that say nothing to whoever made the file.
FOREIGN = re.compile(r"allow_pickle|in the archive|weights_only|state_dict for|Unable to|HeaderTooLarge|Error\(")


def rows(folder: Path) -> Callable[[], Any]:
    part = Samples(np.zeros((4, 2), np.float32), np.zeros(4, np.int64))
    save_dataset(folder, part, part, classes=1, normalize="none", source="none")
    with (folder / "train.npz").open("wb") as stream:
        np.savez(stream, features=np.array([{}], object), labels=part.labels_N)
    return lambda: load_dataset(folder)


def other_rows(folder: Path) -> Callable[[], Any]:
    rows(folder)
    with (folder / "train.npz").open("wb") as stream:
        np.savez(stream, values=np.zeros(3))
    return lambda: load_dataset(folder)


def arrays(folder: Path) -> Callable[[], Any]:
    forms = [ArrayForm("image", (2,), "float32")]
    part = {"image": np.zeros((4, 2), np.float32)}
    write_arrays(folder, forms, {"train": part, "test": part}, {})
    (folder / "test/image.npy").write_bytes(pickle.dumps([{}]))
    return lambda: open_arrays(folder, forms)


def hdf5(folder: Path) -> Callable[[], Any]:
    (folder / "in.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(40))
    (source,) = find_sources(folder / "in.h5", "**/*", "auto", (Format.HDF5,))
    return lambda: list(read_hdf5(source, RowPreprocessRequest(), RowErrors(skips=False)))


def pickled(folder: Path) -> Callable[[], Any]:
    torch.save(nn.Linear(2, 2), folder / "model.pt")
    return lambda: convert_checkpoint(folder / "model.pt", folder / "out.safetensors")


def checkpoint(folder: Path) -> Callable[[], Any]:
    data = b"\x02" + bytes(7) + b"{}"
    (folder / "step-1.safetensors").write_bytes(data)
    named = {"file": "step-1.safetensors", "step": 1, "sha256": sha256_of(data)}
    write_json_atomic(folder / "latest.json", named)
    return lambda: load_checkpoint(folder)


@pytest.mark.parametrize("make", [rows, other_rows, arrays, hdf5, pickled, checkpoint], ids=lambda make: make.__name__)
def test_a_file_that_cannot_be_used_says_what_was_expected(
    tmp_path: Path, make: Callable[[Path], Callable[[], Any]]
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        make(tmp_path)()
    assert not FOREIGN.search(refused.value.message), refused.value.message
    assert re.search("expected|preprocess again", refused.value.message)


def test_tensors_of_another_model_are_named() -> None:
    wanted = {"a.weight": (4, 2), "a.bias": (4,), "b.weight": (2, 2)}
    found = {"a.weight": (4, 3), "a.bias": (4,), "c.weight": (2, 2)}
    assert find_differences(found, wanted) == (
        "it lacks b.weight; only the checkpoint has c.weight; a.weight is [4, 3] instead of [4, 2]"
    )
    assert find_differences(wanted, wanted) is None
    assert find_differences({}, {str(n): () for n in range(8)}) == "it lacks 0, 1, 2, 3, 4 and 3 more"


def test_a_checkpoint_of_another_model_is_no_dump_of_torch() -> None:
    program = ModelProgram(Shape("logreg", {"num_features": 4, "num_classes": 3}, 2, "f32"))
    with pytest.raises(InvalidArgument, match=r"another model: it lacks .*; only the checkpoint has x") as refused:
        program.parameters_to_device({"x": torch.zeros(2)})
    assert "\n" not in refused.value.message and not FOREIGN.search(refused.value.message)


def test_a_pef_of_a_program_is_refused_with_how_a_box_serves_its_model() -> None:
    with pytest.raises(PefMismatch, match=r"net\.pef was not compiled by a ModelBox.*rdukit docs modelbox-own-model"):
        shape_of(training_pef(), "net.pef")
