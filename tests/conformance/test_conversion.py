"""Converting models, and a converted model on the host (SDK reference 4.1, 5, 19)."""

import copy
import io
from pathlib import Path

import pytest
import torch
from torch import nn

from sambaflow import samba
from sambaflow.samba.nn.parameter import SambaParameter
from sambaflow.samba.sambatensor import SambaTensor
from support import shows
from support.programs import LogReg, ResFFNLogReg, classifier_inputs

pytestmark = shows("surface", "pytorch")


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(2)])
        self.register_buffer("mask", torch.ones(2))


def test_parameters_are_named_by_class_and_module_path() -> None:
    net = LogReg()
    samba.from_torch_model_(net)
    assert net.name == "logreg"
    assert [p.sn_name for p in net.parameters()] == ["logreg__lin_layer__weight", "logreg__lin_layer__bias"]
    nested = Nested()
    samba.from_torch_model_(nested)
    assert nested.h[1][0].weight.sn_name == "nested__h__1__0__weight"
    layer = nn.Linear(2, 2)
    samba.from_torch_model_(layer)
    assert (layer.name, layer.weight.sn_name) == ("linear", "linear__weight")


def test_a_prefix_is_put_before() -> None:
    net = LogReg()
    samba.from_torch_model_(net, parent_module_prefix="left")
    assert net.lin_layer.weight.sn_name == "left__logreg__lin_layer__weight"


def test_conversion_happens_in_place_and_keeps_the_objects() -> None:
    net = LogReg()
    before = list(net.parameters())
    optimizer = samba.optim.SGD(net.parameters(), lr=0.1)
    assert samba.from_torch_model_(net) is net
    assert all(a is b for a, b in zip(before, net.parameters(), strict=True))
    assert all(isinstance(p, SambaParameter) and isinstance(p, nn.Parameter) for p in net.parameters())
    assert optimizer.param_groups[0]["params"][0] is net.lin_layer.weight
    assert optimizer.device_groups(0)[0].parameters == ("logreg__lin_layer__weight", "logreg__lin_layer__bias")


def test_frozen_parameters_stay_frozen() -> None:
    net = LogReg()
    net.lin_layer.bias.requires_grad_(False)
    samba.from_torch_model_(net)
    assert [p.requires_grad for p in net.parameters()] == [True, False]


def test_converting_again_changes_nothing() -> None:
    net = LogReg()
    samba.from_torch_model_(net)
    names = [p.sn_name for p in net.parameters()]
    samba.from_torch_(net)
    assert [p.sn_name for p in net.parameters()] == names


def test_a_wrapper_around_a_converted_module_keeps_its_names() -> None:
    inner = LogReg()
    samba.from_torch_model_(inner)
    wrapper = nn.Sequential(inner, nn.Linear(2, 2))
    samba.from_torch_model_(wrapper)
    assert inner.lin_layer.weight.sn_name == "logreg__lin_layer__weight"
    assert wrapper[1].weight.sn_name == "sequential__1__weight"


def test_models_on_the_meta_device_can_be_converted() -> None:
    with torch.device("meta"):
        net = LogReg()
    samba.from_torch_model_(net)
    assert not net.lin_layer.weight.has_data
    assert net.lin_layer.weight.sn_name == "logreg__lin_layer__weight"


def test_on_the_host_plain_torch_inputs_give_sambatensors() -> None:
    net = ResFFNLogReg()
    image, label = torch.randn(4, 16), torch.randint(4, (4,))
    gold = net(image, label)
    samba.from_torch_model_(net)
    loss, out = net(image, label)
    assert isinstance(loss, SambaTensor)
    assert isinstance(out, SambaTensor)
    assert torch.equal(samba.to_torch(out), gold[1])
    assert out.torch().detach().numpy().shape == (4, 4)
    assert loss.item() == gold[0].item()


def test_on_the_host_autograd_works_with_sambatensor_inputs() -> None:
    net = ResFFNLogReg()
    reference = copy.deepcopy(net)
    samba.from_torch_model_(net)
    image, label = classifier_inputs()
    loss, _ = net(image, label)
    loss.mean().backward()
    reference(image.data, label.data)[0].backward()
    for ours, theirs in zip(net.parameters(), reference.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(torch.as_tensor(ours.grad), theirs.grad)


def test_the_optimizer_steps_on_the_host_like_torchs() -> None:
    net = LogReg()
    reference = copy.deepcopy(net)
    samba.from_torch_model_(net)
    ours = samba.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    theirs = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    image, label = classifier_inputs()
    for _ in range(3):
        ours.zero_grad()
        net(image, label)[0].backward()
        ours.step()
        theirs.zero_grad()
        reference(image.data, label.data)[0].backward()
        theirs.step()
    assert torch.allclose(net.lin_layer.weight.data, reference.lin_layer.weight.data)


def test_adamw_has_the_vendors_defaults() -> None:
    optimizer = samba.optim.AdamW(nn.Linear(1, 1).parameters())
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.997)
    assert optimizer.param_groups[0]["weight_decay"] == 0


def test_a_state_dict_saves_and_loads_with_plain_torch(tmp_path: Path) -> None:
    net = LogReg()
    samba.from_torch_model_(net)
    state = net.state_dict()
    assert all(torch.equal(state[k].torch_tensor(), p.data) for k, p in net.named_parameters())
    torch.save(state, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert type(loaded["lin_layer.weight"]) is torch.Tensor
    plain = LogReg()
    plain.load_state_dict(loaded)
    other = LogReg()
    samba.from_torch_model_(other)
    other.load_state_dict(state)
    other.load_state_dict({name: samba.from_torch_tensor(value) for name, value in loaded.items()})
    for model in (plain, other):
        assert torch.equal(model.lin_layer.weight.data, net.lin_layer.weight.data)
    assert other.lin_layer.weight.sn_name == "logreg__lin_layer__weight"


def test_a_deep_copy_is_converted_too_and_has_memory_of_its_own() -> None:
    net = LogReg()
    samba.from_torch_model_(net)
    other = copy.deepcopy(net)
    assert other.lin_layer.weight.sn_name == net.lin_layer.weight.sn_name
    with torch.no_grad():
        other.lin_layer.weight.zero_()
    assert net.lin_layer.weight.data.abs().sum() > 0


def test_moving_and_casting_a_model_keeps_its_parameters_names() -> None:
    net = LogReg()
    samba.from_torch_model_(net)
    net.to("cpu").to(torch.float64)
    assert net.lin_layer.weight.dtype == torch.float64
    assert net.lin_layer.weight.sn_name == "logreg__lin_layer__weight"
    assert isinstance(net.bfloat16().lin_layer.weight, SambaParameter)
    assert net.float().lin_layer.weight.dtype == torch.float32


def test_a_whole_model_can_be_pickled_and_converted_again() -> None:
    net = LogReg()
    samba.from_torch_model_(net)
    stream = io.BytesIO()
    torch.save(net, stream)
    stream.seek(0)
    other = torch.load(stream, weights_only=False)
    samba.from_torch_model_(other)
    assert other.lin_layer.weight.sn_name == "logreg__lin_layer__weight"
    assert torch.equal(other.lin_layer.weight.data, net.lin_layer.weight.data)
    assert isinstance(other.lin_layer.weight, SambaParameter)


def test_a_samba_parameter_can_be_assigned_to_a_module() -> None:
    layer = nn.Linear(2, 3)
    layer.weight = SambaParameter(torch.ones(3, 2))
    samba.from_torch_model_(layer)
    assert layer.weight.sn_name == "linear__weight"
    empty = SambaParameter(shape=reversed((3, 2)), dtype=torch.bfloat16, requires_grad=False)
    assert (tuple(empty.shape), empty.dtype, empty.has_data) == ((2, 3), torch.bfloat16, False)


def test_tied_parameters_have_one_name() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    samba.from_torch_model_(net)
    assert net[1].weight.sn_name == "sequential__0__weight"


def test_parameters_of_one_model_in_place_under_no_grad() -> None:
    net = LogReg()
    samba.from_torch_model_(net)
    with torch.no_grad():
        net.lin_layer.weight.fill_(2.0)
        net.lin_layer.bias.copy_(samba.zeros(4))
        net.lin_layer.weight.mul_(samba.tensor(0.5))
    assert float(net.lin_layer.weight.data.mean()) == pytest.approx(1.0)
