"""Parameters and buffers whose paths would give one symbol: each gets its own, on the way in and on the way back."""

import io
from pathlib import Path

import pytest
import torch
from torch import nn

from sambaflow import samba
from sambaflow.samba.utils.checkpoint import load_sharded_checkpoint
from support import shows
from support.programs import compare_step, load_model

pytestmark = shows("pytorch", "o0", "o1", "o3")


class Clashing(nn.Module):
    """Parameter ``a__weight`` beside ``a.weight``, buffer ``a__bias`` beside ``a.bias``."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.a__weight = nn.Parameter(torch.randn(4))
        self.register_buffer("a__bias", torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) * self.a__weight + self.a__bias


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
def test_tensors_whose_names_would_clash_compute_and_train_as_in_torch(mode: str, tmp_path: Path) -> None:
    net = Clashing()
    compare_step(net, samba.randn(3, 4, name="x"), tmp_path, optim_level=mode)
    assert net.a.weight.sn_name == "clashing__a__weight"
    assert net.a__weight.sn_name == "clashing__a__weight_1"
    samba.from_torch_model_(net)
    assert net.a__weight.sn_name == "clashing__a__weight_1", "converting again changes no name"


def test_values_of_clashing_tensors_come_back_each_to_its_own(tmp_path: Path) -> None:
    """The device holds bf16: values that are rounded to it have been there."""
    net = Clashing()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    load_model(net, samba.randn(3, 4, name="x"), tmp_path)
    samba.session.to_cpu(net)
    assert all(torch.equal(tensor, before[name].bfloat16().float()) for name, tensor in net.state_dict().items())
    other = {name: torch.randn_like(tensor) for name, tensor in before.items()}
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in other.items()}, str(tmp_path / "model.safetensors"))
    load_sharded_checkpoint(net, tmp_path)
    samba.session.to_cpu(net)
    assert all(torch.equal(tensor, other[name].bfloat16().float()) for name, tensor in net.state_dict().items())


def test_a_converted_model_with_clashing_names_is_copied_and_saved_with_its_own_names() -> None:
    net = samba.from_torch_model_(Clashing())
    stream = io.BytesIO()
    torch.save(net.state_dict(), stream)
    stream.seek(0)
    assert set(torch.load(stream, weights_only=True)) == {"a.weight", "a.bias", "a__weight", "a__bias"}
