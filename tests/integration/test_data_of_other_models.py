"""Data sets of other models are refused before the first step, by what differs, whatever the kind of box."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rdukit.errors import InvalidArgument
from rdukit_modelbox.tasks.texts import open_texts
from rdukit_serving.shape import Shape
from support import first_short, shows
from support.boxes import run_verb

pytestmark = shows("training", "portable")

#: Sizes that a box is compiled with for data of its defaults, and what is named.
OTHER_SIZES: list[tuple[str, dict[str, Any], str]] = [
    ("lenet", {"num_classes": 3}, "num_classes: 10 in the data set, 3 in the PEF"),
    ("lenet", {"num_classes": 12}, "num_classes: 10 in the data set, 12 in the PEF"),
    ("vit", {"width": 16, "layers": 1, "channels": 3}, "channels: 1 in the data set, 3 in the PEF"),
    ("vit", {"width": 16, "layers": 1, "image_size": 14}, "image_size: 28 in the data set, 14 in the PEF"),
    ("bert-classifier", {"num_classes": 3}, "num_classes: 2 in the data set, 3 in the PEF"),
    ("bert", {"context_length": 24}, "context_length: 64 in the data set, 24 in the PEF"),
    ("mlp", {"num_features": 60}, "num_features: 64 in the data set, 60 in the PEF"),
    ("mlp", {"num_classes": 12}, "num_classes: 10 in the data set, 12 in the PEF"),
]


@pytest.fixture(autouse=True)
def portable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels that need no compiler, and a home of its own."""
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))


def refused_by_train(box: str, folder: Path, dataset: Path, words: str, **sizes: Any) -> None:
    """Assert that a training on ``dataset`` is refused with these words, before its first step."""
    pef = run_verb(box, "compile", folder / "pef", batch_size=4, **sizes).outputs["pef"]
    with pytest.raises(InvalidArgument, match=words):
        run_verb(box, "train", folder / "run", {"pef": pef, "dataset": dataset})
    assert not (folder / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize(("box", "sizes", "words"), first_short(OTHER_SIZES, 1))
def test_a_data_set_of_other_sizes_is_refused_by_their_names(
    box: str, sizes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    few: dict[str, Any] = {} if box == "mlp" else {"samples": 20}
    made = run_verb(box, "preprocess", tmp_path / "data", **few)
    refused_by_train(box, tmp_path, made.outputs["dataset"], words, **sizes)


def test_labels_beyond_the_classes_are_refused_where_they_come_from_and_before_the_first_step(tmp_path: Path) -> None:
    images = np.zeros((20, 1, 28, 28), np.float32)
    np.savez(tmp_path / "images.npz", image=images, label=np.arange(20) % 10)
    given = {"data": tmp_path / "images.npz"}
    words = r"label has the value .*; expected 0 to 2, as num_classes is 3"
    with pytest.raises(InvalidArgument, match=words):
        run_verb("lenet", "preprocess", tmp_path / "data", given, num_classes=3)
    dataset = run_verb("lenet", "preprocess", tmp_path / "data", given).outputs["dataset"]
    manifest = dataset / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"sizes"', '"of_an_earlier_version"'))
    refused_by_train("lenet", tmp_path, dataset, words, num_classes=3)


def test_units_beyond_their_kinds_are_refused(tmp_path: Path) -> None:
    units = np.full((20, 24), 20, np.int64)
    np.savez(tmp_path / "chains.npz", units=units, transition=np.zeros((20, 1), np.float32))
    with pytest.raises(InvalidArgument, match=r"units has the value 20; expected 0 to 19, as kinds is 20"):
        run_verb("polymers", "preprocess", tmp_path / "data", {"data": tmp_path / "chains.npz"})


OWN_BOX = """
apiVersion: rdukit.dev/v1
kind: ModelBox
extends: regression
name: sites
title: Yield of a site
description: Its mean.
module: model.py:make_model
compilerVersion: "0.1"
"""

OWN_MODEL = """
import torch
from torch import nn

import sambaflow.samba as samba
from rdukit_zoo.registry import ModelEntry


class Sites(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 1)

    def forward(self, site, harvest):
        found = self.table(site)
        return ((found - harvest) ** 2).mean(), found


def make_inputs(batch_size):
    site = samba.randint(5, (batch_size,), name="site", batch_dim=0)
    return site, samba.randn(batch_size, 1, name="harvest", batch_dim=0)


def make_model():
    return ModelEntry("sites", "Sites", "regression", "ours", "ours", {}, Sites, make_inputs)
"""


def test_indices_beyond_a_table_of_an_own_model_are_refused_whatever_their_name(tmp_path: Path) -> None:
    box = tmp_path / "sites"
    box.mkdir()
    (box / "modelbox.yaml").write_text(OWN_BOX)
    (box / "model.py").write_text(OWN_MODEL)
    np.savez(tmp_path / "sites.npz", site=np.arange(20) % 6, harvest=np.zeros((20, 1), np.float32))
    made = run_verb(str(box), "preprocess", tmp_path / "data", {"data": tmp_path / "sites.npz"})
    words = "site has the value 5; expected 0 to 4, because there are 5 choices"
    refused_by_train(str(box), tmp_path, made.outputs["dataset"], words)


OWN_CLASSIFIER = """
import torch.nn.functional as F
from torch import nn

import sambaflow.samba as samba
from rdukit_zoo.registry import ModelEntry


class Leaves(nn.Module):
    def __init__(self):
        super().__init__()
        self.answer = nn.Linear(4, 3)

    def forward(self, leaf, species=None):
        logits = self.answer(leaf)
        return logits if species is None else (F.cross_entropy(logits, species), logits)


def make_inputs(batch_size):
    leaf = samba.randn(batch_size, 4, name="leaf", batch_dim=0)
    return leaf, samba.randint(3, (batch_size,), name="species", batch_dim=0)


def make_model():
    return ModelEntry("leaves", "Leaves", "image-classification", "ours", "ours", {}, Leaves, make_inputs)
"""


def test_classes_beyond_the_output_of_an_own_model_are_refused_without_a_size_that_says_them(tmp_path: Path) -> None:
    box = tmp_path / "leaves"
    box.mkdir()
    (box / "modelbox.yaml").write_text(OWN_BOX.replace("sites", "leaves").replace("regression", "image-arrays"))
    (box / "model.py").write_text(OWN_CLASSIFIER)
    np.savez(tmp_path / "leaves.npz", leaf=np.zeros((20, 4), np.float32), species=np.arange(20) % 4)
    made = run_verb(str(box), "preprocess", tmp_path / "data", {"data": tmp_path / "leaves.npz"})
    words = "species has the value 3; expected 0 to 2, because there are 3 choices"
    refused_by_train(str(box), tmp_path, made.outputs["dataset"], words)


def test_columns_of_a_table_travel_with_the_checkpoint(tmp_path: Path) -> None:
    rows = [f"{n % 7},{n % 3},{'good' if n % 2 else 'bad'}" for n in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join(["height,weight,label", *rows]) + "\n")
    sizes: dict[str, Any] = {"num_features": 2, "num_classes": 2, "hidden_size": 4}
    data = {"data": tmp_path / "rows.csv"}
    datasets = [
        run_verb("mlp", "preprocess", tmp_path / names, data, columns=names).outputs["dataset"]
        for names in ("height,weight", "weight,height")
    ]
    pef = run_verb("mlp", "compile", tmp_path / "pef", batch_size=4, **sizes).outputs["pef"]
    kept = run_verb("mlp", "train", tmp_path / "run", {"pef": pef, "dataset": datasets[0]}, max_steps=1).outputs
    asked = {"pef": pef, "dataset": datasets[1], "checkpoint": kept["checkpoint"]}
    words = "columns: height, weight in the checkpoint .*, weight, height in the PEF with its data set"
    more: dict[str, dict[str, Any]] = {"evaluate": {}, "infer": {}, "train": {"continue_as": "weights"}}
    for verb, parameters in more.items():
        with pytest.raises(InvalidArgument, match=words):
            run_verb("mlp", verb, tmp_path / "no", asked, **parameters)
    assert run_verb("mlp", "evaluate", tmp_path / "yes", {**asked, "dataset": datasets[0]}).figures["samples"]


def test_tokens_beyond_the_vocabulary_are_refused_whatever_the_manifest_says(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("".join(f"line {n}\n" for n in range(40)))
    data = {"data": tmp_path / "data.txt"}
    folder = run_verb("gpt2", "preprocess", tmp_path / "data", data, max_seq_length=16).outputs["dataset"]
    shape = Shape("gpt2", {"context_length": 16, "vocabulary": 200}, 4, "f32")
    with pytest.raises(InvalidArgument, match="tokenizer has 257 tokens, but the PEF's model only 200"):
        open_texts(shape, folder)
    manifest = folder / "manifest.json"
    said = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**said, "tokenizer": {**said["tokenizer"], "ids": 200}}))
    with pytest.raises(InvalidArgument, match="input_ids has the value 256; expected 0 to 199, as vocabulary is 200"):
        open_texts(shape, folder)


def test_a_training_does_not_go_on_with_classes_of_other_names(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"num_features": 1, "num_classes": 2, "hidden_size": 4}
    pef = run_verb("mlp", "compile", tmp_path / "pef", batch_size=4, **sizes).outputs["pef"]
    for names, words in (
        (("neg", "pos"), ""),
        (("no", "yes"), "classes: neg, pos in the checkpoint in .*, no, yes in"),
    ):
        rows = [f"{n % 7},{names[n % 2]}" for n in range(40)]
        (tmp_path / "rows.csv").write_text("\n".join(["height,label", *rows]) + "\n")
        data = run_verb("mlp", "preprocess", tmp_path / names[0], {"data": tmp_path / "rows.csv"}).outputs["dataset"]
        asked = {"pef": pef, "dataset": data}
        if words:
            with pytest.raises(InvalidArgument, match=words):
                run_verb("mlp", "train", tmp_path / "run", asked, max_steps=2)
        else:
            run_verb("mlp", "train", tmp_path / "run", asked, max_steps=1)


def test_a_split_smaller_than_a_batch_is_judged_by_its_rows_and_an_empty_one_is_refused(tmp_path: Path) -> None:
    rows = [f"{n % 7},{n % 3},{n % 2}" for n in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join(["height,weight,label", *rows]) + "\n")
    sizes: dict[str, Any] = {"num_features": 2, "num_classes": 2, "hidden_size": 4}
    few, none = (
        run_verb("mlp", "preprocess", tmp_path / f"data-{ratio}", {"data": tmp_path / "rows.csv"}, test_ratio=ratio)
        for ratio in (0.2, 0.0)
    )
    pef = run_verb("mlp", "compile", tmp_path / "pef", batch_size=16, **sizes).outputs["pef"]
    asked = {"pef": pef, "dataset": few.outputs["dataset"]}
    trained = run_verb("mlp", "train", tmp_path / "run", asked, max_steps=1)
    given = {**asked, "checkpoint": trained.outputs["checkpoint"]}
    judged = run_verb("mlp", "evaluate", tmp_path / "judged", given)
    assert few.figures["test_samples"] == judged.figures["samples"] == 8
    assert trained.figures["held_out_loss"] == judged.figures["held_out_loss"]
    for verb in ("infer", "evaluate"):
        with pytest.raises(InvalidArgument, match=r"no samples in a (test|dev or test) split"):
            run_verb("mlp", verb, tmp_path / "no", {**given, "dataset": none.outputs["dataset"]})
    larger = run_verb("mlp", "compile", tmp_path / "larger", batch_size=64, **sizes).outputs["pef"]
    with pytest.raises(InvalidArgument, match="has 32 training samples, fewer than a batch of 64"):
        run_verb("mlp", "train", tmp_path / "no", {**asked, "pef": larger})
