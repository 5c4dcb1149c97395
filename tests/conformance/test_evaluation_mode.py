"""``model.eval()`` and ``model.train()`` in a program: a run computes what torch does in that mode, or is refused.

Numbers under the f32 switch equal torch's to 1e-5: the same operators in the same dtype.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit.pef import Pef, SectionType, read_pef
from rdukit.pef.model import NO_EVALUATION
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.graph import FwdGraph
from sambaflow.sessions.modes import evaluating
from support import shows
from support.programs import Loaded, LogReg, classifier_inputs, load_model

pytestmark = shows("pytorch", "o0", "o1", "o3")

OLD_PEF = Path(__file__).parents[1] / "data/pef/normed_training_1_3.pef"
FEATURES, CLASSES, BATCH = 8, 4, 6


class Normed(nn.Module):
    """(x [B, 8], y [B]) → (loss [], logits [B, 4]), with a batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.drop = nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.Dropout(0.5)
        self.b, self.criterion = nn.Linear(16, CLASSES), nn.CrossEntropyLoss()

    def forward(self, x: Any, y: Any) -> Any:
        out = self.b(self.drop(self.norm(self.a(x)).relu()))
        return self.criterion(out, y), out


def inputs() -> tuple[samba.SambaTensor, samba.SambaTensor]:
    return (
        samba.randn(BATCH, FEATURES, name="x", batch_dim=0),
        samba.randint(CLASSES, (BATCH,), name="y", batch_dim=0),
    )


def sgd(parameters: Any) -> Any:
    return samba.optim.SGD(parameters, lr=0.1)


def load(folder: Path, build: Callable[[], nn.Module] = Normed, **config: Any) -> Loaded:
    utils.set_seed(0)
    return load_model(build(), inputs(), folder, sgd, **{"precision": "f32", **config})


def pef_of(loaded: Loaded) -> Pef:
    return read_pef(loaded.pef).pef


def buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    samba.session.to_cpu(model)
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def host_answers(model: nn.Module, batch: Any) -> list[torch.Tensor]:
    """What torch gives in evaluation mode for the device's parameters and buffers."""
    samba.session.to_cpu(model)
    with torch.no_grad():
        return [samba.to_torch(made) for made in copy.deepcopy(model).eval()(*batch)]


def evaluate(loaded: Loaded, batch: Any) -> list[torch.Tensor]:
    with evaluating(loaded.model):
        return [out.torch() for out in loaded.run(input_tensors=batch, section_types=["fwd"])]


# -- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
def test_an_evaluation_equals_torchs_between_training_steps_and_changes_nothing(tmp_path: Path, mode: str) -> None:
    loaded = load(tmp_path, optim_level=mode)
    for _ in range(3):
        loaded.run(input_tensors=inputs())
        before, batch = buffers(loaded.model), inputs()
        made = evaluate(loaded, batch)
        assert all(torch.equal(buffer, before[name]) for name, buffer in buffers(loaded.model).items())
        for ours, theirs in zip(made, host_answers(loaded.model, batch), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_train_switches_back_and_steps_are_those_of_a_program_that_never_evaluated(tmp_path: Path) -> None:
    def trained(evaluates: bool) -> dict[str, torch.Tensor]:
        loaded = load(tmp_path / str(evaluates))
        utils.set_seed(3)
        batches = [inputs() for _ in range(4)]
        for batch in batches:
            loaded.run(input_tensors=batch, hyperparam_dict={"p": 0.0})
            if evaluates:
                loaded.model.eval()
                loaded.run(input_tensors=batches[0], section_types=["FWD"])
                loaded.model.train()
        samba.session.to_cpu(loaded.model)
        found = {name: samba.to_torch(value).clone() for name, value in loaded.model.state_dict().items()}
        samba.session.reset()
        return found

    one, other = trained(False), trained(True)
    assert one["norm.num_batches_tracked"] == 4
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_bf16_evaluation_is_near_torchs_and_the_same_every_time(tmp_path: Path) -> None:
    loaded = load(tmp_path, precision="bf16")
    loaded.run()
    batch = inputs()
    made = evaluate(loaded, batch)
    assert all(torch.equal(a, b) for a, b in zip(made, evaluate(loaded, batch), strict=True))
    for ours, theirs in zip(made, host_answers(loaded.model, batch), strict=True):
        # 2**-8 a rounding, a handful of them on the way
        torch.testing.assert_close(ours, theirs, rtol=0.03, atol=0.03)


class Branch(nn.Module):
    """What a program's own branches do: a table for training, another one for evaluation; a functional dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.criterion = nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES), nn.MSELoss()
        self.table = torch.arange(float(CLASSES))

    def forward(self, x: Any, y: Any) -> Any:
        if self.training:
            out = self.a(functional.dropout(x, 0.25, self.training)) + self.table
        else:
            out = self.b(x) * torch.tensor([1.0, 2.0, 3.0, 4.0]) + self.table
        return self.criterion(out[:, 0], y.float()), out


def test_a_programs_own_branches_and_constants_are_those_of_the_mode(tmp_path: Path) -> None:
    loaded = load(tmp_path, Branch)
    batch = inputs()
    loaded.run()
    for ours, theirs in zip(evaluate(loaded, batch), host_answers(loaded.model, batch), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    constants = [name for name in pef_of(loaded).symbols if "constant" in name]
    assert constants == ["branch__constant__0", "branch__evaluation__constant__0"], "what is equal is held once"


def test_outputs_are_read_by_handle_by_name_and_from_the_traced_tensors(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    loaded.run()
    loaded.model.eval()
    name = loaded.outputs[1].sn_name
    (made,) = loaded.run(output_tensors=[loaded.outputs[1]], section_types=["fwd"])
    assert made.sn_name == name
    expected = host_answers(loaded.model, loaded.inputs)[1]
    (read,) = samba.session.get_tensors_by_name([name])
    for found in (made, loaded.outputs[1], read):
        torch.testing.assert_close(found.torch(), expected, rtol=1e-5, atol=1e-5)
    loaded.model.train()
    loaded.run(hyperparam_dict={"p": 0.0, "lr": 0.0})
    assert not torch.allclose(loaded.outputs[1].torch(), expected), "batch statistics again"


def test_a_model_that_takes_the_traced_ones_place_is_asked_for_its_mode(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    loaded.run()
    samba.session.to_cpu(loaded.model)
    again = Normed()
    again.load_state_dict({name: samba.to_torch(value) for name, value in loaded.model.state_dict().items()})
    samba.from_torch_model_(again)
    samba.session.to_device()
    again.eval()
    made = loaded.run(section_types=["fwd"])[1].torch()
    torch.testing.assert_close(made, host_answers(again, loaded.inputs)[1], rtol=1e-5, atol=1e-5)


# -- what the PEF holds ----------------------------------------------------------------------------------------------


def test_an_evaluation_graph_has_forward_sections_over_the_training_graphs_state(tmp_path: Path) -> None:
    pef = pef_of(load(tmp_path))
    evaluation = pef.evaluation_of("normed")
    assert evaluation is not None
    sections = [pef.sections[number] for number in evaluation.schedule]
    assert {section.type for section in sections} == {SectionType.FWD}
    assert not (evaluation.seeds or evaluation.gradients or evaluation.losses)
    state = {name for name, symbol in pef.symbols.items() if symbol.kind in {"parameter", "buffer", "input"}}
    assert not any("evaluation" in name for name in state), "one place for each parameter and buffer"
    assert not state & {name for section in sections for name in section.outputs}
    assert all(s.dtype == "float32" for s in pef.symbols.values() if s.kind == "parameter"), "masters"


class NoDifference(nn.Module):
    """Reads its mode, and computes the same in both; what is dropped out is nothing, or is so in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.a, self.criterion = nn.Dropout(0.0), nn.Linear(FEATURES, CLASSES), nn.CrossEntropyLoss()
        self.norm = nn.BatchNorm1d(FEATURES, track_running_stats=False)

    def forward(self, x: Any, y: Any) -> Any:
        out = self.a(self.drop(self.norm(functional.dropout(x, 0.1))) + torch.tensor(1.0))
        return self.criterion(out, y), out


@pytest.mark.parametrize("build", [lambda: LogReg(FEATURES), NoDifference, lambda: Normed().eval()])
def test_a_model_without_a_difference_gets_no_second_graph_and_evaluates_by_its_only_one(
    tmp_path: Path, build: Callable[[], nn.Module]
) -> None:
    loaded = load(tmp_path, build)
    pef = pef_of(loaded)
    assert len(pef.graphs) == 1
    loaded.run()
    loaded.model.eval()
    batch = inputs()
    ours = loaded.run(input_tensors=batch, section_types=["fwd"], hyperparam_dict={"p": 0.0})
    if not isinstance(loaded.model, NoDifference):
        torch.testing.assert_close(ours[1].torch(), host_answers(loaded.model, batch)[1], rtol=1e-5, atol=1e-5)


class Embedded(Normed):
    """Has layers before its dropout through which no gradient flows: nothing is kept for a backward."""

    def __init__(self) -> None:
        super().__init__()
        self.a.requires_grad_(False)
        self.norm = nn.Identity()


def test_equal_sections_of_both_graphs_share_a_kernel(tmp_path: Path) -> None:
    pef = pef_of(load(tmp_path, Embedded, optim_level="o0"))
    kernels = {name: {pef.sections[n].kernel for n in graph.schedule} for name, graph in pef.graphs.items()}
    shared = kernels["embedded"] & kernels["embedded__evaluation"]
    assert len(shared) >= 2, "the first linear layer, and the relu"


# -- what is refused -------------------------------------------------------------------------------------------------


def test_a_step_or_a_backward_in_evaluation_mode_is_refused_with_what_is_legal(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    loaded.run()
    loaded.model.eval()
    for types in (None, ["fwd", "bckwd"], ["opt"]):
        with pytest.raises(InvalidArgument, match=r"section_types=\['fwd'\] to evaluate, or call model.train\(\)"):
            loaded.run(section_types=types)
    loaded.model.train()
    loaded.run(section_types=["fwd"])
    evaluate(loaded, inputs())
    with pytest.raises(InvalidArgument, match="run 'fwd' in training mode first"):
        loaded.run(section_types=["bckwd", "opt"])
    loaded.run(section_types=["fwd"])
    loaded.run(section_types=["bckwd", "opt"])


def test_a_mode_that_the_pef_has_no_graph_for_is_refused(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    loaded.model.norm.eval()
    with pytest.raises(PefMismatch, match=r"but the model now computes something else"):
        loaded.run(section_types=["fwd"])
    loaded.model.train()
    loaded.run()
    samba.session.reset()

    loaded = load(tmp_path / "frozen", lambda: Normed().eval())
    loaded.run()
    loaded.model.train()
    with pytest.raises(PefMismatch, match=r"is in training mode, .* or compile and trace it in this one"):
        loaded.run()
    samba.session.reset()

    serving = load_model(Normed(), inputs(), tmp_path / "serving")
    serving.model.eval()
    with pytest.raises(PefMismatch, match=r"call model.eval\(\) before compile and trace"):
        serving.run()


class Heads(Normed):
    """Returns another number of tensors in training than in evaluation."""

    def forward(self, x: Any, y: Any) -> Any:
        loss, out = super().forward(x, y)
        return (loss, out) if self.training else out


class Merging(Normed):
    """Changes its parameters when it changes its mode, as adapters do that are merged into weights."""

    def train(self, mode: bool = True) -> Any:
        if mode != self.training:
            with torch.no_grad():
                self.b.bias.add_(-1.0 if mode else 1.0)
        return super().train(mode)


class Refusing(Normed):
    """Does in evaluation what a static graph cannot."""

    def forward(self, x: Any, y: Any) -> Any:
        loss, out = super().forward(x, y)
        return (loss, out) if self.training or out.sum().item() > 0 else (out, loss)


class Decomposing(Normed):
    """Calls in evaluation what the device does not have."""

    def forward(self, x: Any, y: Any) -> Any:
        loss, out = super().forward(x, y)
        return loss, out if self.training else out * torch.linalg.svdvals(out).sum()


@pytest.mark.parametrize(
    ("build", "why"),
    [(Heads, "returns float32"), (Merging, "changes parameters"), (Refusing, "item"), (Decomposing, "linalg_svdvals")],
)
def test_a_model_that_has_no_evaluation_graph_trains_and_is_refused_in_evaluation_mode(
    tmp_path: Path, build: Callable[[], nn.Module], why: str
) -> None:
    loaded = load(tmp_path, build)
    assert why in pef_of(loaded).metadata[NO_EVALUATION]
    assert all(module.training for module in loaded.model.modules())
    loaded.run()
    loaded.model.eval()
    with pytest.raises(PefMismatch, match=r"has no evaluation graph, because|cannot run in evaluation mode"):
        loaded.run(section_types=["fwd"])
    loaded.model.train()
    loaded.run()


def test_an_earlier_pef_trains_and_asks_to_be_compiled_again_for_evaluation() -> None:
    assert read_pef(OLD_PEF).format_version == (1, 3)
    utils.set_seed(0)
    model = samba.from_torch_model_(Normed())
    optimizer = sgd(model.parameters())
    outputs = utils.trace_graph(model, inputs(), optimizer, pef=str(OLD_PEF))
    samba.session.run(inputs(), outputs)
    model.eval()
    with pytest.raises(PefMismatch, match=r"has no evaluation graph; compile this program again"):
        samba.session.run(inputs(), outputs, section_types=["fwd"])


def test_evaluating_puts_every_module_back_into_its_own_mode() -> None:
    model = Normed()
    model.norm.eval()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [name for name, module in model.named_modules() if not module.training] == ["norm"]


def test_another_classs_mode_is_none_of_the_traced_models(tmp_path: Path) -> None:
    loaded = load_model(LogReg(), classifier_inputs(), tmp_path, sgd)
    other = samba.from_torch_model_(Normed())
    other.eval()
    loaded.run()


def test_a_trace_in_evaluation_mode_of_a_training_pef_says_when_to_call_eval(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    loaded.model.eval()
    with pytest.raises(PefMismatch, match=r"call model.train\(\) before trace_graph, and model.eval\(\) after it"):
        utils.trace_graph(loaded.model, loaded.inputs, None, pef=loaded.pef)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_multigraph_pef_runs_in_the_mode_in_which_it_was_traced(tmp_path: Path, rate: float) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(rate))
    samba.from_torch_model_(model)
    x = samba.ones(2, 4, name="x")
    samba.session.add_graph(FwdGraph((x,), samba.session.trace_multigraph(model, (x,)), "whole"))
    options = {"output_folder": str(tmp_path), "pef_name": "multi", "log_level": "error"}
    samba.session.init_multigraph_runtime(samba.session.compile_multigraph("multi", config_dict=options))
    samba.session.run((x,), None, graph_name="whole")
    model.eval()
    if rate:
        with pytest.raises(PefMismatch, match=r"call model.eval\(\) before compile and trace"):
            samba.session.run((x,), None, graph_name="whole")
    else:
        samba.session.run((x,), None, graph_name="whole")


def test_a_spatial_call_evaluates_all_of_its_batches(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    batches = (samba.randn(18, FEATURES, name="x", batch_dim=0), samba.randint(CLASSES, (18,), name="y", batch_dim=0))
    outputs = utils.trace_graph(loaded.model, batches, loaded.optimizer, pef=loaded.pef, mapping="spatial")
    samba.session.run(batches, outputs)
    loaded.model.eval()
    logits = samba.session.run(batches, outputs, section_types=["fwd"])[1].torch()
    torch.testing.assert_close(logits, host_answers(loaded.model, batches)[1], rtol=1e-5, atol=1e-5)


def test_a_data_parallel_pef_evaluates_and_averages_nothing(tmp_path: Path) -> None:
    loaded = load(tmp_path, data_parallel=True)
    loaded.run(data_parallel=True)
    loaded.model.eval()
    logits = loaded.run(section_types=["fwd"], data_parallel=True)[1].torch()
    torch.testing.assert_close(logits, host_answers(loaded.model, loaded.inputs)[1], rtol=1e-5, atol=1e-5)
