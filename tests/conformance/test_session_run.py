"""``samba.session.run`` and what surrounds it: inputs, outputs, sections, gradients, hyperparameters."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.sambatensor import SambaTensor
from support import shows
from support.programs import LogReg, ResFFNLogReg, classifier_inputs, load_model

pytestmark = shows("surface", "pytorch", "precision", "o0", "o1", "o3")


def sgd(parameters: Any) -> Any:
    return samba.optim.SGD(parameters, lr=0.1, momentum=0.9)


class OutFirst(LogReg):
    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> Any:
        loss, out = super().forward(inputs, targets)
        return out, loss


class Predictor(nn.Module):
    """No loss inside."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x).tanh()


class TwoLosses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        out = self.lin(x)
        return nn.functional.mse_loss(out, target), nn.functional.l1_loss(out, target), out


class PerSample(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 3)
        self.criterion = nn.CrossEntropyLoss(reduction="none")

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.criterion(self.lin(x), target)
        return loss


def features(name: str = "x", batch: int = 4) -> SambaTensor:
    return samba.randn(batch, 6, name=name, batch_dim=0).bfloat16().float()


def relative(ours: torch.Tensor, gold: torch.Tensor) -> float:
    return float(((ours - gold).abs().max() / gold.abs().max()).detach())


# -- outputs -----------------------------------------------------------------------------------------------------------


def test_outputs_are_named_by_model_module_and_operator(tmp_path: Path) -> None:
    loaded = load_model(LogReg(), classifier_inputs(), tmp_path, sgd)
    assert [t.sn_name for t in loaded.outputs] == [
        "logreg__criterion__crossentropyloss__outputs__0", "logreg__lin_layer__linear__outputs__0",
    ]  # fmt: skip
    assert loaded.model.output_tensors == loaded.outputs
    assert set(samba.session.output_dict) == {t.sn_name for t in loaded.outputs}
    assert set(samba.session.tensor_dict["inputs"]) == {"image", "label"}
    assert "logreg__lin_layer__weight__sgd0__momentum" in samba.session.optim_dict


def test_a_run_returns_a_list_with_a_handle_for_each_requested_output(tmp_path: Path) -> None:
    loaded = load_model(LogReg(), classifier_inputs(), tmp_path, sgd)
    assert isinstance(made := loaded.run(), list)
    assert [t.sn_name for t in made] == [t.sn_name for t in loaded.outputs]
    assert len(loaded.run(output_tensors=loaded.outputs[1])) == 1
    assert loaded.run(output_tensors=None) == []
    (loss,) = samba.session.run(loaded.inputs, loaded.outputs[:1])
    assert loss.dtype == torch.float32
    assert loss.shape == ()


def test_a_handle_that_was_read_keeps_its_value_through_later_runs(tmp_path: Path) -> None:
    loaded = load_model(LogReg(), classifier_inputs(), tmp_path, sgd)
    first, _ = loaded.run()
    value = first.item()
    second, _ = loaded.run()
    assert second.item() < value
    assert first.item() == value
    repr(loaded.run())


def test_logits_are_values_that_bf16_can_hold_a_loss_is_f32_and_inputs_stay_as_they_are(tmp_path: Path) -> None:
    image, label = classifier_inputs()
    before = image.data.clone(), label.data.clone()
    loaded = load_model(ResFFNLogReg(), (image, label), tmp_path, sgd)
    weight = loaded.model.gemm1.weight.data.clone()
    loss, out = loaded.run()
    assert loss.data.dtype == out.data.dtype == torch.float32
    assert torch.equal(out.data, out.data.bfloat16().float())
    torch.testing.assert_close(loss.data, nn.functional.cross_entropy(out.data, label.data))  # f32 to the last bits
    assert torch.equal(image.data, before[0])
    assert torch.equal(label.data, before[1])
    assert not torch.equal(loaded.model.gemm1.weight.sn_data, weight)
    assert torch.equal(loaded.model.gemm1.weight.data, loaded.model.gemm1.weight.sn_data)


def test_constants_made_in_forward_do_not_make_the_device_compute_in_f32(tmp_path: Path) -> None:
    class WithConstants(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(6, 6)
            self.register_buffer("offset", torch.full((6,), 0.3))
            self.plain = torch.full((6,), 0.7, dtype=torch.bfloat16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = (self.lin(x) * torch.ones(6) + self.offset + torch.arange(6.0)) * self.plain
            return made

    net = WithConstants()
    reference = copy.deepcopy(net)
    loaded = load_model(net, features(), tmp_path)
    (out,) = loaded.run()
    assert torch.equal(out.data, out.data.bfloat16().float())
    assert relative(out.data, reference(loaded.inputs.data)) < 2e-2


# -- inputs ------------------------------------------------------------------------------------------------------------


class Sum(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor | None = None, pair: Any = None) -> torch.Tensor:
        total = a * 2
        if b is not None:
            total = total + b
        for item in pair or ():
            total = total - item
        return total


@pytest.mark.parametrize("form", ["single", "tuple", "list", "dict", "nested", "none"])
def test_inputs_may_be_single_tuples_lists_dicts_nested_or_have_gaps(form: str, tmp_path: Path) -> None:
    a, b, c = features("a"), features("b"), features("c")
    given: Any = {
        "single": a, "tuple": (a, b), "list": [a, b], "dict": {"b": b, "a": a}, "nested": (a, b, (c, c * 0)),
        "none": (a, None, [c]),
    }[form]  # fmt: skip
    if form == "nested":
        given[2][1].sn_name = "d"
    net = Sum()
    gold = net(**{k: v.data for k, v in given.items()}) if form == "dict" else None
    if gold is None:

        def plain(value: Any) -> Any:
            if isinstance(value, SambaTensor):
                return value.data
            return [plain(v) for v in value] if isinstance(value, list | tuple) else value

        gold = net(plain(given)) if form == "single" else net(*plain(given))
    loaded = load_model(net, given, tmp_path, precision="f32")
    assert len(loaded.outputs) == 1
    (out,) = loaded.run()
    assert torch.equal(out.data, gold)


def test_inputs_match_by_name_and_not_by_position(tmp_path: Path) -> None:
    loaded = load_model(LogReg(), classifier_inputs(), tmp_path, sgd)
    image, label = loaded.inputs
    first = [t.data for t in loaded.run(section_types=["fwd"])]
    for given in ((label, image), {"x": label, "y": image}, samba.from_named_dict({"label": label, "image": image})):
        again = [t.data for t in loaded.run(input_tensors=given, section_types=["fwd"])]
        assert torch.equal(again[1], first[1])


def test_inputs_that_are_not_passed_keep_their_device_values(tmp_path: Path) -> None:
    loaded = load_model(LogReg(), classifier_inputs(), tmp_path, sgd)
    _, first = loaded.run(section_types=["fwd"])
    value = first.data
    _, second = loaded.run(input_tensors=[loaded.inputs[1]], section_types=["fwd"])
    assert torch.equal(second.data, value)


def test_the_upload_happens_inside_run_so_host_buffers_can_be_reused(tmp_path: Path) -> None:
    loaded = load_model(LogReg(), classifier_inputs(), tmp_path, sgd)
    buffer = torch.zeros(8, 16)
    image = samba.from_torch_tensor(buffer, name="image")
    buffer.fill_(1.0)
    _, ones = loaded.run(input_tensors=[image, loaded.inputs[1]], section_types=["fwd"])
    buffer.fill_(-1.0)
    assert torch.equal(ones.data, ones.data[:1].expand(8, -1))
    _, minus = loaded.run(input_tensors=[image, loaded.inputs[1]], section_types=["fwd"])
    assert not torch.equal(ones.data, minus.data)


def test_sambaloader_yields_named_tensors(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader, TensorDataset

    from sambaflow.samba.sambaloader import DataLoaderException, SambaLoader

    data = DataLoader(TensorDataset(torch.randn(16, 16), torch.randint(4, (16,))), batch_size=8)
    loader = SambaLoader(data, ["image", "label"])
    loaded = load_model(LogReg(), classifier_inputs(), tmp_path, sgd)
    assert len(loader) == 2
    for image, label in loader:
        assert (image.sn_name, label.sn_name, image.batch_dim) == ("image", "label", 0)
        loss, _ = samba.session.run(input_tensors=[image, label], output_tensors=loaded.outputs)
        assert loss.item() > 0
    doubled = SambaLoader(data, ["image"], function_hook=lambda batch: batch[0] * 2, return_original_batch=True)
    (first,), original = next(iter(doubled))
    assert torch.equal(first.data, original[0] * 2)
    with pytest.raises(DataLoaderException, match=r"2 tensors.*1 names"):
        next(iter(SambaLoader(data, ["image"])))


# -- sections ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
@pytest.mark.parametrize("parts", [(["fwd"], ["bckwd", "opt"]), (["FWD"], ["BckWd"], ["$OPT"])], ids=["two", "three"])
def test_sections_one_after_the_other_equal_one_full_run(mode: str, parts: Any, tmp_path: Path) -> None:
    net = ResFFNLogReg()
    other = copy.deepcopy(net)
    whole = load_model(net, classifier_inputs(), tmp_path, sgd, optim_level=mode)
    for _ in range(3):
        whole.run()
    samba.session.to_cpu(net)
    samba.session.reset()
    split = load_model(other, whole.inputs, tmp_path / "split", sgd, optim_level=mode)
    for _ in range(3):
        for section_types in parts:
            split.run(section_types=section_types)
    samba.session.to_cpu(other)
    assert torch.equal(net.gemm1.weight.data, other.gemm1.weight.data)


def test_section_ids_select_sections_by_number(tmp_path: Path) -> None:
    loaded = load_model(LogReg(), classifier_inputs(), tmp_path, sgd)
    weight = loaded.model.lin_layer.weight
    before = weight.data.clone()
    loaded.run(section_ids=[0])
    assert torch.equal(weight.sn_data, before)
    loaded.run(section_ids=[0, 1, 2])
    assert not torch.equal(weight.sn_data, before)


def test_a_full_run_after_a_full_run_starts_from_fresh_gradients(tmp_path: Path) -> None:
    loaded = load_model(LogReg(), classifier_inputs(), tmp_path, lambda p: samba.optim.SGD(p, lr=0.0))
    loaded.run()
    first = loaded.model.lin_layer.weight.sn_grad
    loaded.run()
    assert torch.equal(loaded.model.lin_layer.weight.sn_grad, first)


# -- gradients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
@pytest.mark.parametrize(("precision", "limit"), [("bf16", 3e-2), ("f32", 1e-5)])
def test_sn_grad_equals_the_hosts_autograd(mode: str, precision: str, limit: float, tmp_path: Path) -> None:
    net = ResFFNLogReg()
    loaded = load_model(net, classifier_inputs(), tmp_path, sgd, optim_level=mode, precision=precision)
    net(*loaded.inputs)[0].mean().backward()
    loaded.run()
    for parameter in net.parameters():
        assert parameter.grad is not None
        # bf16: each of a dozen operators rounds to 8 bits, 4e-3 apiece.
        assert relative(parameter.sn_grad, torch.as_tensor(parameter.grad)) < limit


def test_sn_grad_of_one_linear_layer_is_within_the_vendors_bound(tmp_path: Path) -> None:
    net = LogReg()
    loaded = load_model(net, classifier_inputs(64), tmp_path, sgd)
    with torch.no_grad():
        rounded = [p.data.bfloat16().float() for p in net.parameters()]
        for parameter, value in zip(net.parameters(), rounded, strict=True):
            parameter.data.copy_(value)
    image, label = loaded.inputs[0].bfloat16().float(), loaded.inputs[1]
    samba.session.to_rdu(net)
    net(image, label)[0].mean().backward()
    loaded.run(input_tensors=[image, label])
    utils.assert_close(net.lin_layer.bias.sn_grad, net.lin_layer.bias.grad, "bias", threshold=1e-2)
    utils.assert_close(net.lin_layer.weight.sn_grad, net.lin_layer.weight.grad, "weight", threshold=1e-2)


def test_an_external_loss_sets_the_gradient_of_the_prediction(tmp_path: Path) -> None:
    net = Predictor()
    reference = copy.deepcopy(net)
    loaded = load_model(net, features(), tmp_path, sgd, precision="f32")
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    target = torch.randn(4, 3)
    for _ in range(5):
        (out,) = loaded.run(section_types=["fwd"])
        prediction = samba.to_torch(out).requires_grad_()
        nn.functional.mse_loss(prediction, target).backward()
        loaded.outputs[0].sn_grad = prediction.grad
        loaded.run(section_types=["bckwd", "opt"])
        optimizer.zero_grad()
        nn.functional.mse_loss(reference(loaded.inputs.data), target).backward()
        optimizer.step()
    samba.session.to_cpu(net)
    assert (net.lin.weight.data - reference.lin.weight.data).abs().max() < 1e-5


def test_grad_of_outputs_is_another_way_to_say_it(tmp_path: Path) -> None:
    net = Predictor()
    loaded = load_model(net, features(), tmp_path, sgd, precision="f32")
    loaded.run(grad_of_outputs=[samba.full((4, 3), 2.0)], section_types=["fwd", "bckwd"])
    doubled = net.lin.weight.sn_grad
    loaded.outputs[0].sn_grad = torch.ones(4, 3)
    loaded.run(section_types=["fwd", "bckwd"])
    assert torch.allclose(doubled, net.lin.weight.sn_grad * 2)


def test_a_loss_is_scaled_by_its_gradient_which_stays_until_set_again(tmp_path: Path) -> None:
    net = PerSample()
    inputs = (features(), samba.randint(3, (4,), name="target"))
    loaded = load_model(net, inputs, tmp_path, lambda p: samba.optim.SGD(p, lr=0.0), precision="f32")
    mask = torch.tensor([1.0, 0.0, 1.0, 0.0]) / 2
    (net(*inputs) * mask).sum().backward()
    loaded.outputs[0].sn_grad = mask
    for _ in range(2):
        (loss,) = loaded.run()
        assert loss.shape == (4,)
        assert net.lin.weight.grad is not None
        assert relative(net.lin.weight.sn_grad, torch.as_tensor(net.lin.weight.grad)) < 1e-5
    loaded.outputs[0].sn_grad = torch.zeros(4)
    loaded.run()
    assert net.lin.weight.sn_grad.abs().max() == 0


def test_a_mean_loss_trains_the_same_whether_it_comes_first_or_last(tmp_path: Path) -> None:
    torch.manual_seed(3)
    first, last = LogReg(), OutFirst()
    last.load_state_dict(first.state_dict())
    inputs = classifier_inputs()
    load_model(first, inputs, tmp_path, sgd).run()
    expected = first.lin_layer.weight.sn_data
    samba.session.reset()
    out, loss = load_model(last, inputs, tmp_path / "last", sgd).run()
    assert out.shape == (8, 4)
    assert loss.shape == ()
    assert torch.equal(last.lin_layer.weight.sn_data, expected)


def test_all_losses_start_backward_unless_loss_indices_names_some(tmp_path: Path) -> None:
    net = TwoLosses()
    inputs = (features(), samba.randn(4, 3, name="target"))
    loaded = load_model(net, inputs, tmp_path, lambda p: samba.optim.SGD(p, lr=0.0), precision="f32")
    mse, l1, out = net(*inputs)
    loaded.run()
    both = torch.autograd.grad((mse + l1).torch(), [net.lin.weight], retain_graph=True)[0]
    assert relative(net.lin.weight.sn_grad, both) < 1e-5
    for indices, wanted in (([0], mse), ([(1,)], l1), ([2], out.sum())):
        samba.session.reset()
        outputs = utils.trace_graph(net, inputs, loaded.optimizer, pef=loaded.pef, loss_indices=indices)
        samba.session.run(inputs, outputs)
        gold = torch.autograd.grad(wanted.torch(), [net.lin.weight], retain_graph=True)[0]
        assert relative(net.lin.weight.sn_grad, gold) < 1e-5


def test_output_gradients_can_be_set_all_at_once(tmp_path: Path) -> None:
    net = TwoLosses()
    inputs = (features(), samba.randn(4, 3, name="target"))
    loaded = load_model(net, inputs, tmp_path, lambda p: samba.optim.SGD(p, lr=0.0), precision="f32")
    mse_name, l1_name, _ = (t.sn_name for t in loaded.outputs)
    zeros = torch.zeros(4, 3)
    utils.init_output_grads(loaded.outputs, [zeros], {mse_name: torch.tensor(0.0), l1_name: torch.tensor(3.0)})
    loaded.run()
    gold = torch.autograd.grad(net(*inputs)[1].torch(), [net.lin.weight])[0] * 3
    assert relative(net.lin.weight.sn_grad, gold) < 1e-5


# -- hyperparameters ---------------------------------------------------------------------------------------------------


def test_hyperparameters_override_the_constructors_and_unknown_ones_are_tolerated(tmp_path: Path) -> None:
    net = LogReg()
    reference = copy.deepcopy(net)
    loaded = load_model(net, classifier_inputs(), tmp_path, lambda p: samba.optim.SGD(p, lr=0.0), precision="f32")
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.5, weight_decay=0.01)
    for _ in range(4):
        loaded.run(hyperparam_dict={"lr": 0.1, "momentum": 0.5, "weight_decay": 0.01, "p": 0.5, "strnd_seed": 3})
        optimizer.zero_grad()
        reference(loaded.inputs[0].data, loaded.inputs[1].data)[0].backward()
        optimizer.step()
    samba.session.to_cpu(net)
    assert (net.lin_layer.weight.data - reference.lin_layer.weight.data).abs().max() < 1e-5
    before = net.lin_layer.weight.sn_data
    loaded.run()  # the compiled-in lr is 0 again
    assert torch.equal(net.lin_layer.weight.sn_data, before)


def test_a_changed_hyperparameter_in_the_same_dict_counts(tmp_path: Path) -> None:
    loaded = load_model(LogReg(), classifier_inputs(), tmp_path, lambda p: samba.optim.SGD(p, lr=0.0))
    hyper = {"lr": 0.0}
    loaded.run(hyperparam_dict=hyper)
    before = loaded.model.lin_layer.weight.sn_data
    hyper["lr"] = 0.5
    loaded.run(hyperparam_dict=hyper)
    assert not torch.equal(loaded.model.lin_layer.weight.sn_data, before)


# -- measuring ---------------------------------------------------------------------------------------------------------


def test_a_runtime_profile_tells_what_each_section_took(tmp_path: Path) -> None:
    loaded = load_model(LogReg(), classifier_inputs(), tmp_path, sgd)
    samba.session.start_runtime_profile()
    for _ in range(3):
        loaded.run()
    samba.session.end_runtime_profile(str(tmp_path / "profile.json"))
    profile = json.loads((tmp_path / "profile.json").read_text())
    assert [(s["type"], s["runs"]) for s in profile["sections"]] == [("fwd", 3), ("bckwd", 3), ("opt", 3)]
    assert all(s["emulated_seconds"] > 0 and s["host_seconds"] > 0 for s in profile["sections"])
    (tmp_path / "profile.json").unlink()
    samba.session.end_runtime_profile(str(tmp_path / "profile.json"))
    assert not (tmp_path / "profile.json").exists()


def test_measure_performance_prints_and_returns_throughput(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = load_model(LogReg(), classifier_inputs(), tmp_path, sgd)
    throughput, latency = utils.measure_performance(
        loaded.model, loaded.inputs, 8, 1, False, n_iterations=5, json=str(tmp_path / "perf.json")
    )
    printed = capsys.readouterr().out
    assert "e2e_throughput: " in printed
    assert "samples/s, measured over 5 iterations." in printed
    assert "e2e_latency: " in printed
    assert throughput == pytest.approx(8 / latency)
    assert json.loads((tmp_path / "perf.json").read_text())["iterations"] == 5
