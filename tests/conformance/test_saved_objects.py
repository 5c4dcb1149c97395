"""``torch.save`` of tensors and whole models, and ``torch.load`` with its default ``weights_only=True``."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from sambaflow import samba
from sambaflow.samba.sambatensor import SambaTensor
from support import shows
from support.programs import LogReg, classifier_inputs, load_model

pytestmark = shows("pytorch")


def trained(tmp_path: Path) -> Any:
    return load_model(LogReg(), classifier_inputs(), tmp_path, lambda p: samba.optim.AdamW(p, lr=0.1))


def test_tensors_of_the_sdk_load_without_asking_for_trust(tmp_path: Path) -> None:
    loaded = trained(tmp_path)
    outputs = loaded.run()
    file = tmp_path / "tensors.pt"
    torch.save({"in": loaded.inputs, "out": outputs, "weights": list(loaded.model.parameters())}, file)
    read = torch.load(file)
    assert [type(t) for t in read["out"]] == [SambaTensor, SambaTensor]
    assert torch.equal(read["out"][1].data, outputs[1].data)
    assert [t.sn_name for t in read["in"]] == ["image", "label"]


def test_a_whole_model_needs_trust_only_for_the_classes_of_torch_and_the_program(tmp_path: Path) -> None:
    loaded = trained(tmp_path)
    loaded.run()
    samba.session.to_cpu(loaded.model)
    file = tmp_path / "model.pt"
    torch.save(loaded.model, file)
    foreign = get_unsafe_globals_in_checkpoint(file)
    assert sorted(foreign) == [
        "support.programs.LogReg", "torch.nn.modules.linear.Linear", "torch.nn.modules.loss.CrossEntropyLoss",
    ]  # fmt: skip
    with safe_globals([LogReg, nn.Linear, nn.CrossEntropyLoss]):
        model = torch.load(file)
    assert torch.equal(model.lin_layer.weight, loaded.model.lin_layer.weight)
    samba.from_torch_model_(model)
    again = load_model(model, classifier_inputs(), tmp_path)
    assert again.run()[0].item() > 0
    assert model.run(again.inputs)[0].item() > 0, "the run of old programs is the loaded model's own"
