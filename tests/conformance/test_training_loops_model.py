"""Requests that a training loop of plain PyTorch makes of its model: obeyed, or refused at the line.

Numbers under the f32 switch equal torch's to 1e-5: the same operators in the same dtype.
"""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from rdukit.errors import InvalidArgument, PefMismatch, ShapeMismatch, UnsupportedOperator
from sambaflow import samba
from sambaflow.samba import utils
from support import shows
from support.pages import code_blocks, read_page
from support.programs import Loaded, load_model

pytestmark = shows("pytorch", "training-loops-model")


class Net(nn.Module):
    """(x [8, 4], y [8]) → (loss [], logits [8, 3]); ``layers`` are what stands between."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.linear, self.layers = nn.Linear(4, 3), nn.Sequential(*layers)
        self.scales, self.act = [1.0], torch.tanh

    def forward(self, x: Any, y: Any) -> Any:
        out = self.act(self.layers(self.linear(x))) * self.scales[0]
        out = out * 2 if getattr(self, "doubles", False) else out
        return functional.cross_entropy(out, y), out


def load(folder: Path, *layers: nn.Module, **config: Any) -> Loaded:
    utils.set_seed(0)
    batch = samba.randn(8, 4, name="x", batch_dim=0), samba.randint(3, (8,), name="y", batch_dim=0)
    return load_model(Net(*layers), batch, folder, partial(samba.optim.SGD, lr=0.5), **{"precision": "f32", **config})


def weight_of(loaded: Loaded) -> torch.Tensor:
    return samba.session.read_tensor(loaded.model.linear.weight.sn_name).clone()


@pytest.mark.parametrize("layer", [nn.Identity, nn.Dropout, lambda: nn.BatchNorm1d(3)])
def test_a_whole_run_in_evaluation_mode_without_gradients_evaluates(tmp_path: Path, layer: Any) -> None:
    loaded = load(tmp_path, layer())
    loaded.run()
    before = weight_of(loaded)
    loaded.model.eval()
    with torch.no_grad():
        made = loaded.run()[1].torch()
        assert torch.equal(weight_of(loaded), before)
        samba.session.to_cpu(loaded.model)
        host = samba.to_torch(loaded.model(*(t.torch() for t in loaded.inputs))[1])
    torch.testing.assert_close(made, host, rtol=1e-5, atol=1e-5)
    loaded.model.train()
    loaded.run()
    assert not torch.equal(weight_of(loaded), before)


def test_a_whole_step_after_eval_is_refused_where_gradients_are_enabled(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    loaded.model.eval()
    with pytest.raises(InvalidArgument, match=r"evaluation mode.*under torch\.no_grad\(\) a whole run evaluates"):
        loaded.run()


def test_a_model_that_was_traced_in_evaluation_mode_trains_in_it(tmp_path: Path) -> None:
    utils.set_seed(0)
    batch = samba.randn(8, 4, name="x"), samba.randint(3, (8,), name="y")
    loaded = load_model(Net().eval(), batch, tmp_path, lambda p: samba.optim.SGD(p, lr=0.5))
    before = weight_of(loaded)
    loaded.run()
    assert not torch.equal(weight_of(loaded), before)


# -- values on the host ------------------------------------------------------------------------------------------------


def reference_of(loaded: Loaded) -> tuple[Net, torch.optim.SGD]:
    """The same model in eager torch, with an optimizer of the same numbers."""
    model = copy.deepcopy(loaded.model)
    plain = Net(*(copy.deepcopy(layer) for layer in loaded.model.layers))
    plain.load_state_dict({name: samba.to_torch(value) for name, value in model.state_dict().items()})
    return plain, torch.optim.SGD(plain.parameters(), lr=0.5)


def train(loaded: Loaded, reference: tuple[Net, torch.optim.SGD]) -> None:
    model, optimizer = reference
    loaded.run()
    optimizer.zero_grad()
    model(*(tensor.torch() for tensor in loaded.inputs))[0].backward()
    optimizer.step()


def check_equal(loaded: Loaded, reference: tuple[Net, torch.optim.SGD]) -> None:
    theirs = reference[0].state_dict()
    for name, value in loaded.model.state_dict().items():
        torch.testing.assert_close(samba.to_torch(value), theirs[name], rtol=1e-5, atol=1e-5)


def test_state_dict_and_parameters_read_after_a_step_are_the_devices(tmp_path: Path) -> None:
    loaded = load(tmp_path, nn.BatchNorm1d(3))
    reference = reference_of(loaded)
    for _ in range(2):
        train(loaded, reference)
        check_equal(loaded, reference)
    train(loaded, reference)
    weight, norm = loaded.model.linear.weight, loaded.model.layers[0]
    torch.testing.assert_close(weight.sum().item(), reference[0].linear.weight.sum().item(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm.running_mean, reference[0].layers[0].running_mean, rtol=1e-5, atol=1e-5)
    assert norm.num_batches_tracked == 3


def test_forward_on_the_host_computes_with_the_devices_parameters(tmp_path: Path) -> None:
    loaded = load(tmp_path, nn.Linear(3, 3))
    reference = reference_of(loaded)
    for _ in range(2):
        train(loaded, reference)
        given = [tensor.torch() for tensor in loaded.inputs]
        ours, theirs = (samba.to_torch(model(*given)[0]) for model in (loaded.model, reference[0]))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


EDITS: dict[str, Any] = {
    "in place": lambda model: model.linear.weight.mul_(0.5),
    "through data": lambda model: model.linear.weight.data.mul_(0.5),
    "a new data": lambda model: setattr(model.linear.weight, "data", model.linear.weight.data * 0.5),
    "through detach": lambda model: model.linear.weight.detach().mul_(0.5),
    "a row": lambda model: model.linear.weight[1].fill_(0.5),
    "an initialization": lambda model: nn.init.constant_(model.linear.weight, 0.25),
    "through numpy": lambda model: model.linear.bias.data.numpy().fill(0.125),
    "load_state_dict": lambda model: model.load_state_dict({k: torch.full_like(samba.to_torch(v), 0.5) for k, v in
                                                            model.state_dict().items()}),
    "a vector of all": lambda model: torch.nn.utils.vector_to_parameters(
        torch.nn.utils.parameters_to_vector(model.parameters()) * 0.5, model.parameters()
    ),
    "a buffer": lambda model: model.layers[0].running_mean.fill_(0.5),
    "a buffer's element": lambda model: model.layers[0].running_var.__setitem__(1, 3.0),
}  # fmt: skip


@pytest.mark.parametrize("kind", EDITS)
def test_weights_that_the_host_changes_between_steps_are_the_next_steps(tmp_path: Path, kind: str) -> None:
    loaded = load(tmp_path, nn.BatchNorm1d(3))
    reference = reference_of(loaded)
    for _ in range(2):
        train(loaded, reference)
        with torch.no_grad():
            EDITS[kind](loaded.model)
            EDITS[kind](reference[0])
    train(loaded, reference)
    check_equal(loaded, reference)


#: What a program keeps of the model's memory, before the first step. Each gives a tensor over it.
KEPT: dict[str, Any] = {
    "data": lambda model: model.linear.weight.data,
    "detach": lambda model: model.linear.weight.detach(),
    "a view": lambda model: model.linear.weight.view(-1)[:4].detach(),
    "a state dict": lambda model: model.state_dict()["linear.weight"],
    "an array": lambda model: torch.from_numpy(model.linear.weight.detach().numpy()),
    "a buffer": lambda model: model.layers[0].running_mean,
}


@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.parametrize("is_before_trace", [False, True])
def test_memory_that_a_program_keeps_follows_the_steps_and_may_be_changed(
    tmp_path: Path, kind: str, is_before_trace: bool
) -> None:
    utils.set_seed(0)
    inputs = samba.randn(8, 4, name="x"), samba.randint(3, (8,), name="y")
    model = Net(nn.BatchNorm1d(3))
    early = KEPT[kind](model)
    loaded = load_model(model, inputs, tmp_path, partial(samba.optim.SGD, lr=0.5), precision="f32")
    reference = reference_of(loaded)
    ours = early if is_before_trace else KEPT[kind](model)
    theirs = KEPT[kind](reference[0])
    for _ in range(3):
        train(loaded, reference)
        if not (is_before_trace and kind == "a buffer"):  # a buffer that nobody reads from the model stays the host's
            torch.testing.assert_close(samba.to_torch(ours), samba.to_torch(theirs), rtol=1e-5, atol=1e-5)
            ours.mul_(0.5)
            theirs.mul_(0.5)
    check_equal(loaded, reference)


def test_memory_that_nothing_keeps_is_not_copied_at_each_step(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    print(loaded.model.linear.weight.data, loaded.model.linear.bias.norm())
    loaded.run()
    assert samba.session.loaded is not None and not samba.session.loaded.copies.kept


@pytest.mark.parametrize("explicit", ["to_cpu", "cpu", "to_rdu"])
def test_changes_of_the_host_outlive_an_explicit_copy(tmp_path: Path, explicit: str) -> None:
    loaded = load(tmp_path)
    reference = reference_of(loaded)
    for _ in range(2):
        train(loaded, reference)
        with torch.no_grad():
            for model in (loaded.model, reference[0]):
                model.linear.weight /= model.linear.weight.norm(dim=0, keepdim=True)
        if explicit == "cpu":
            loaded.model.linear.weight.cpu()
        else:
            getattr(samba.session, explicit)(loaded.model)
        check_equal(loaded, reference)
    train(loaded, reference)
    check_equal(loaded, reference)


def test_copies_of_a_model_keep_their_own_values(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    gold = copy.deepcopy(loaded.model)
    before = gold.linear.weight.data.clone()
    loaded.run()
    assert torch.equal(gold.linear.weight.data, before)
    loaded.run()
    samba.session.reset()


class Looked(nn.Module):
    """(x) → x + 1."""

    def forward(self, x: Any) -> Any:
        return x + 1


@pytest.mark.parametrize(("dtype", "value"), [(torch.uint8, 300), (torch.uint8, -1), (torch.int32, 2**40)])
def test_an_integer_that_the_inputs_dtype_cannot_hold_is_refused(tmp_path: Path, dtype: Any, value: int) -> None:
    loaded = load_model(Looked(), (samba.from_torch_tensor(torch.ones(2, dtype=dtype), name="x"),), tmp_path)
    given = samba.from_torch_tensor(torch.tensor([1, value]), name="x")
    with pytest.raises(ShapeMismatch, match="compile with a wider dtype"):
        loaded.run(input_tensors=[given])
    narrow = samba.from_torch_tensor(torch.tensor([1, 3]), name="x")
    assert loaded.run(input_tensors=[narrow])[0].torch().tolist() == [2, 4]


# -- changes after tracing ---------------------------------------------------------------------------------------------


def replace_parameter(model: Any) -> None:
    model.linear.weight = nn.Parameter(torch.zeros(3, 4))


CHANGES: dict[str, Any] = {
    "requires_grad": lambda model: model.linear.bias.requires_grad_(False),
    "a forward hook": lambda model: model.linear.register_forward_hook(lambda module, args, out: out * 2),
    "a pre-hook": lambda model: model.linear.register_forward_pre_hook(lambda module, args: None),
    "a backward hook": lambda model: model.linear.register_full_backward_hook(lambda module, into, out: None),
    "a parameter's hook": lambda model: model.linear.weight.register_hook(lambda gradient: gradient * 2),
    "a parameter": replace_parameter,
    "a module": lambda model: setattr(model, "linear", nn.Linear(4, 3)),
    "another layer": lambda model: model.layers.append(nn.ReLU()),
    "batch norm's eps": lambda model: setattr(model.layers[0], "eps", 0.5),
    "forward of a module": lambda model: setattr(model.linear, "forward", lambda x: x[:, :3] * 2),
    "a setting that was missing": lambda model: setattr(model, "doubles", True),
    "a list of settings": lambda model: model.scales.__setitem__(0, 3.0),
    "a function": lambda model: setattr(model, "act", torch.sin),
    "batch norm's momentum": lambda model: setattr(model.layers[0], "momentum", 0.9),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_changes_in_a_model_after_tracing_is_refused_at_the_next_run(tmp_path: Path, kind: str) -> None:
    loaded = load(tmp_path, nn.BatchNorm1d(3))
    loaded.run()
    CHANGES[kind](loaded.model)
    for _ in range(2):
        with pytest.raises(PefMismatch, match="compile and trace the model again"):
            loaded.run()


def test_a_number_that_forward_does_not_read_may_change(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    loaded.model.epoch = 0
    loaded.run()
    loaded.model.epoch = 1
    before = weight_of(loaded)
    loaded.run()
    assert not torch.equal(weight_of(loaded), before), "it has trained"


def test_a_dropout_rate_that_is_set_after_tracing_is_the_next_runs(tmp_path: Path) -> None:
    loaded = load(tmp_path, nn.Dropout(0.25))
    loaded.model.layers[0].p = 0.75
    zeros = sum(float((loaded.run(section_types=["fwd"])[1].torch() == 0).float().mean()) for _ in range(50)) / 50
    assert 0.68 < zeros < 0.82  # 1200 draws: five deviations of 0.0125
    kept = sum(float((loaded.run(section_types=["fwd"], hyperparam_dict={"p": 0.0})[1].torch() == 0).sum()) for _ in
               range(3))  # fmt: skip
    assert kept == 0, "hyperparam_dict comes first"


# -- state outside of buffers ------------------------------------------------------------------------------------------

STEPS = {"global": torch.zeros(1)}


class Counter(nn.Module):
    """(x) → how often forward ran, which it counts in ``kind`` of place."""

    shared = torch.zeros(1)

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.own, self.items = kind, torch.zeros(1), [torch.zeros(1)]

    def forward(self, x: Any) -> Any:
        places = {"attribute": self.own, "list": self.items[0], "class": Counter.shared, **STEPS}
        places[self.kind] += 1
        return places[self.kind] * 1.0 + x.sum() * 0


@pytest.mark.parametrize("kind", ["attribute", "list", "class", "global"])
def test_state_that_forward_changes_in_place_starts_where_the_program_left_it(tmp_path: Path, kind: str) -> None:
    model = Counter(kind)
    loaded = load_model(model, (samba.ones(2, name="x"),), tmp_path)
    assert [loaded.run()[0].torch().item() for _ in range(3)] == [1, 2, 3]
    samba.session.to_cpu(model)
    assert {"attribute": model.own, "list": model.items[0], "class": Counter.shared, **STEPS}[kind].item() == 3


class Window(nn.Module):
    """(x [2]) → the last values, which it keeps in a part of a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = torch.zeros(3)

    def forward(self, x: Any) -> Any:
        self.kept[1:] += x
        return self.kept * 1.0


def test_state_that_is_changed_in_part_is_refused_at_compile(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperator, match="keep such state in a buffer"):
        load_model(Window(), (samba.ones(2, name="x"),), tmp_path)


def test_the_manuals_examples_run() -> None:
    exec("\n".join(code_blocks(read_page("training-loops-model.md"))), {"__name__": "example"})
