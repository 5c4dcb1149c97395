"""``rdukit debug`` on a compiled model with a checkpoint that someone sends."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from rdukit.errors import InvalidArgument
from rdukit.pef.file import read_pef
from rdukit.pef.model import SymbolKind
from rdukit_serving.device.debug_command import debug
from sambaflow import samba
from support import shows
from support.programs import ResFFNLogReg, classifier_inputs, compile_model

pytestmark = shows("debug")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(debug, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Compiled training, and a checkpoint of its parameters."""
    folder = tmp_path_factory.mktemp("sent")
    torch.manual_seed(0)
    model = ResFFNLogReg()
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
    samba.from_torch_model_(model)
    optim = samba.optim.SGD(model.parameters(), lr=0.1)
    return compile_model(model, classifier_inputs(), optim, folder), folder / "model.safetensors"


def test_a_right_pef_has_no_wrong_section_and_its_tensors_are_dumped(sent: tuple[str, Path], tmp_path: Path) -> None:
    pef, checkpoint = sent
    rows = json.loads(run(pef, "--checkpoint", checkpoint, "--json").stdout)
    assert {row["type"] for row in rows} == {"fwd", "bckwd", "opt"}
    assert all(row["faults"] == [] for row in rows)
    assert all(row["error"] is not None for row in rows)
    name = next(s.name for s in read_pef(pef).pef.symbols.values() if s.kind is SymbolKind.GRADIENT)
    shown = run(pef, "--checkpoint", checkpoint, "--dump", name, "-o", tmp_path / "d.safetensors")
    assert "no section is wrong" in shown.stdout
    assert list(load_file(tmp_path / "d.safetensors")) == [name]


def test_the_parameter_with_a_nan_is_named(sent: tuple[str, Path], tmp_path: Path) -> None:
    pef, checkpoint = sent
    tensors: dict[str, Any] = load_file(checkpoint)
    tensors["gemm2.weight"][3, 1] = float("nan")
    save_file(tensors, tmp_path / "broken.safetensors")
    shown = run(pef, "--checkpoint", tmp_path / "broken.safetensors", "--sections", "fwd", "--json")
    assert shown.exit_code == 1
    first = next(row for row in json.loads(shown.stdout) if row["faults"])
    (fault,) = first["faults"]
    assert (fault["kind"], fault["operator"]) == ("NaN", "input")
    assert "gemm2" in fault["tensor"]


def test_a_tensor_that_is_not_there_and_a_file_that_is_none_are_refused(sent: tuple[str, Path]) -> None:
    with pytest.raises(InvalidArgument, match="--dump none: the PEF has no such tensor"):
        run(sent[0], "--dump", "none")
    with pytest.raises(InvalidArgument, match="expected a safetensors file"):
        run(sent[0], "--inputs", sent[0])
