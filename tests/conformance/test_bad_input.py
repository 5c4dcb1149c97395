"""Whatever is wrong with a program or a file is said, with what would be legal, and nothing is written."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import (
    CompileError,
    InvalidArgument,
    NoResources,
    PefCorrupt,
    PefMismatch,
    PefNotFound,
    RdukitError,
    RuleError,
    RuntimeFault,
    ShapeMismatch,
    TraceError,
    UnknownTensor,
    UnsupportedOperator,
)
from sambaflow import samba
from sambaflow.samba import utils
from support import shows
from support.node.daemons import running_daemon
from support.programs import Loaded, LogReg, ResFFNLogReg, classifier_inputs, compile_model, load_model

pytestmark = shows("pytorch", "surface", "errors")


def sgd(parameters: Any) -> Any:
    return samba.optim.SGD(parameters, lr=0.1)


@pytest.fixture
def compiled(tmp_path: Path) -> Loaded:
    """A compiled but not loaded logistic regression."""
    net, inputs = LogReg(), classifier_inputs()
    samba.from_torch_model_(net)
    optimizer = sgd(net.parameters())
    return Loaded(net, inputs, optimizer, compile_model(net, inputs, optimizer, tmp_path), ())


def trace(loaded: Loaded, **changes: Any) -> Any:
    arguments = {"model": loaded.model, "inputs": loaded.inputs, "optim": loaded.optimizer, "pef": loaded.pef}
    return utils.trace_graph(**{**arguments, **changes})


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_missing_pef_is_named(compiled: Loaded) -> None:
    with pytest.raises(PefNotFound, match=r"no_such\.pef"):
        trace(compiled, pef="no_such.pef")
    with pytest.raises(PefNotFound):
        trace(compiled, pef=os.devnull + "/x.pef")


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_truncated_pef_is_refused(keep: float, compiled: Loaded) -> None:
    whole = Path(compiled.pef).read_bytes()
    short = Path("short.pef")
    short.write_bytes(whole[: int(keep if keep >= 1 else len(whole) * keep)])
    with pytest.raises(PefCorrupt, match=r"short\.pef"):
        trace(compiled, pef=str(short))


@pytest.mark.parametrize("text", [b"hello", b"PK\x03\x04 not really"])
def test_another_kind_of_file_is_refused(text: bytes, compiled: Loaded) -> None:
    Path("other.pef").write_bytes(text)
    with pytest.raises(PefCorrupt):
        trace(compiled, pef="other.pef")


def test_a_folder_is_no_pef(compiled: Loaded) -> None:
    with pytest.raises(RdukitError):
        trace(compiled, pef=str(Path(compiled.pef).parent))


def test_a_pef_of_another_model_is_refused(compiled: Loaded) -> None:
    other = ResFFNLogReg()
    samba.from_torch_model_(other)
    with pytest.raises(PefMismatch, match="compiled from logreg, not from resffnlogreg"):
        trace(compiled, model=other, optim=sgd(other.parameters()))


def test_a_changed_model_of_the_same_name_is_refused(compiled: Loaded) -> None:
    class Changed(LogReg):
        def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> Any:
            return super().forward(inputs.tanh(), targets)

    Changed.__name__ = "LogReg"
    net = Changed()
    samba.from_torch_model_(net)
    with pytest.raises(PefMismatch, match=r"operator 0 is 'tanh', in the PEF 'linear'.*compile this program again"):
        trace(compiled, model=net, optim=sgd(net.parameters()))


def test_another_batch_size_is_refused_with_the_compiled_one(compiled: Loaded) -> None:
    with pytest.raises(PefMismatch, match=r"'image' is float32\[16, 16\].*compiled for float32\[8, 16\]"):
        trace(compiled, inputs=classifier_inputs(16))


def test_another_input_name_is_refused_with_the_compiled_ones(compiled: Loaded) -> None:
    image, label = classifier_inputs()
    image.sn_name = "picture"
    with pytest.raises(PefMismatch, match=r"'picture' is not in .*image, label"):
        trace(compiled, inputs=(image, label))


def test_another_optimizer_is_refused(compiled: Loaded) -> None:
    with pytest.raises(PefMismatch, match=r"adamw0.*sgd0"):
        trace(compiled, optim=samba.optim.AdamW(compiled.model.parameters()))


def test_training_with_an_inference_pef_is_refused(tmp_path: Path) -> None:
    net, inputs = LogReg(), classifier_inputs()
    pef = compile_model(net, inputs, None, tmp_path)
    with pytest.raises(PefMismatch, match="inference"):
        utils.trace_graph(net, inputs, sgd(net.parameters()), pef=pef)


def test_a_failed_trace_leaves_the_node_free_and_the_next_one_works(compiled: Loaded) -> None:
    with pytest.raises(PefMismatch):
        trace(compiled, inputs=classifier_inputs(16))
    assert len(trace(compiled)) == 2


def test_a_second_trace_replaces_the_loaded_pef_and_warns(compiled: Loaded, caplog: pytest.LogCaptureFixture) -> None:
    first = trace(compiled)
    samba.session.run(compiled.inputs, first, section_types=["fwd"])
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    second = trace(compiled)
    assert "unloading" in caplog.text
    assert "to_cpu" in caplog.text
    loss, out = samba.session.run(compiled.inputs, second)
    assert torch.isfinite(loss.data).all()
    assert out.shape == second[1].shape


def test_a_run_without_a_loaded_pef_says_what_to_call(compiled: Loaded) -> None:
    with pytest.raises(RuntimeFault, match="trace_graph"):
        samba.session.run(compiled.inputs)
    with pytest.raises(RuntimeFault, match="trace_graph"):
        _ = compiled.model.lin_layer.weight.sn_grad


# -- running -----------------------------------------------------------------------------------------------------------


def put(name: str, tensor: torch.Tensor) -> Any:
    return samba.from_torch_tensor(tensor, name=name)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"input_tensors": [put("image", torch.zeros(7, 16))]}, ShapeMismatch, r"\[7, 16\].*\[8, 16\]"),
        ({"input_tensors": [put("image", torch.zeros(8, 16, dtype=torch.int64))]}, ShapeMismatch, "int64.*float32"),
        ({"input_tensors": [put("label", torch.zeros(8))]}, ShapeMismatch, "float32.*int64"),
        ({"input_tensors": [put("picture", torch.zeros(8, 16))]}, UnknownTensor, "'picture'.*image, label"),
        ({"input_tensors": [torch.zeros(8, 16)]}, InvalidArgument, "from_torch_tensor"),
        ({"output_tensors": [put("nothing", torch.zeros(1))]}, UnknownTensor, "'nothing'"),
        ({"section_types": ["forward"]}, InvalidArgument, "'forward'.*fwd.*bckwd.*opt"),
        ({"section_ids": [0, 9]}, InvalidArgument, r"no section 9.*\[0, 1, 2\]"),
        ({"graph_name": "other"}, InvalidArgument, "'other'.*logreg"),
        ({"hyperparam_dict": {"lr": "fast"}}, InvalidArgument, "'fast'.*a number"),
        ({"grad_of_outputs": [torch.ones(3)]}, ShapeMismatch, r"\[3\].*\[\]"),
        ({"grad_of_outputs": [None, None, None]}, InvalidArgument, "3 gradients for 2 outputs"),
        ({"section_types": ["bckwd"]}, InvalidArgument, "'bckwd'.*fwd"),
        ({"section_types": ["opt"]}, InvalidArgument, "'opt'"),
    ],
)  # fmt: skip
def test_wrong_arguments_of_run_are_refused_and_change_nothing(
    arguments: dict[str, Any], error: type[RdukitError], text: str, compiled: Loaded
) -> None:
    outputs = trace(compiled)
    before = compiled.model.lin_layer.weight.sn_data
    with pytest.raises(error, match=text):
        samba.session.run(**{"input_tensors": compiled.inputs, "output_tensors": outputs, **arguments})
    assert torch.equal(compiled.model.lin_layer.weight.sn_data, before)
    loss, _ = samba.session.run(compiled.inputs, outputs)
    assert loss.item() > 0


def test_one_wrong_input_leaves_the_others_on_the_device_as_they_were(compiled: Loaded) -> None:
    trace(compiled)
    samba.session.run(compiled.inputs)
    with pytest.raises(ShapeMismatch):
        samba.session.run([put("image", torch.zeros(8, 16)), put("label", torch.zeros(9, dtype=torch.int64))])
    held = samba.session.read_tensor("image")
    assert held.abs().sum() > 0


def test_backward_sections_are_refused_in_an_inference_pef(tmp_path: Path) -> None:
    loaded = load_model(LogReg(), classifier_inputs(), tmp_path)
    with pytest.raises(InvalidArgument, match=r"no section of type 'bckwd'.*'fwd'"):
        loaded.run(section_types=["bckwd"])


def test_a_gradient_before_backward_is_not_there(compiled: Loaded) -> None:
    outputs = trace(compiled)
    weight = compiled.model.lin_layer.weight
    with pytest.raises(UnknownTensor, match="bckwd"):
        _ = weight.sn_grad
    with pytest.raises(UnknownTensor, match="not an output"):
        compiled.inputs[0].sn_grad = torch.zeros(8, 16)
    with pytest.raises(ShapeMismatch, match=r"\[4\]"):
        outputs[1].sn_grad = torch.zeros(4)


def test_names_that_the_pef_lacks_are_refused(compiled: Loaded) -> None:
    trace(compiled)
    with pytest.raises(UnknownTensor, match="'elsewhere'"):
        samba.session.get_tensors_by_name(["elsewhere"])
    with pytest.raises(InvalidArgument, match="not passed to trace_graph"):
        samba.session.to_cpu(sgd(compiled.model.parameters()))


# -- resources ---------------------------------------------------------------------------------------------------------


def test_more_tiles_than_the_node_has_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, inputs = LogReg(), classifier_inputs()
    with pytest.raises(InvalidArgument, match=r"8 is not valid on sn10; expected \[1, 2, 4\]"):
        compile_model(net, inputs, None, tmp_path, arch="sn10", num_tiles=8)
    with pytest.raises(InvalidArgument, match=r"sn99.*expected"):
        compile_model(net, inputs, None, tmp_path, arch="sn99")
    assert not (tmp_path / "out").exists()


def test_no_tiles_left_is_said_with_what_would_fit(
    compiled: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_daemon("TEST-1") as daemon:
        pef = compile_model(
            compiled.model, compiled.inputs, compiled.optimizer, tmp_path, pef_name="small", arch="sn10", num_tiles=4
        )
        monkeypatch.setenv("RDUKIT_NODE", "daemon")
        monkeypatch.setenv("RDUKIT_SND_SOCKET", str(daemon.socket))
        with pytest.raises(PefMismatch, match=r"sn30.*sn10"):
            trace(compiled)
        with daemon.connect() as other:
            other.acquire("other", 2, 1024)
            with pytest.raises(NoResources, match="tiles"):
                trace(compiled, pef=pef)
        samba.session.reset()


# -- models ------------------------------------------------------------------------------------------------------------


class Forward(nn.Module):
    """A model whose forward is a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)
        self._function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self._function(self, x)


def branch(net: Any, x: torch.Tensor) -> Any:
    return x + 1 if x.sum() > 0 else x - 1


def python_number(net: Any, x: torch.Tensor) -> Any:
    return x * x.max().item()


def dynamic_shape(net: Any, x: torch.Tensor) -> Any:
    return x[x > 0]


def overwrites_parameter(net: Any, x: torch.Tensor) -> Any:
    net.lin.weight.data.mul_(2)
    return net.lin(x)


def returns_nothing(net: Any, x: torch.Tensor) -> Any:
    return None


def returns_number(net: Any, x: torch.Tensor) -> Any:
    return 3


def raises(net: Any, x: torch.Tensor) -> Any:
    raise KeyError("program's own")


def wrong_shapes(net: Any, x: torch.Tensor) -> Any:
    return x @ torch.ones(5, 5)


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (branch, TraceError, "control flow"),
        (python_number, TraceError, "cannot depend on data"),
        (dynamic_shape, TraceError, "data"),
        (overwrites_parameter, UnsupportedOperator, "forward__lin__weight.*cannot be overwritten"),
        (returns_nothing, TraceError, "returns no tensor"),
        (returns_number, TraceError, "returns no tensor"),
        (raises, TraceError, "KeyError.*program's own"),
        (wrong_shapes, TraceError, "tracing forward of 'forward' failed"),
    ],
)  # fmt: skip
def test_what_a_static_graph_cannot_hold_is_refused_at_compile(
    function: Callable[..., Any], error: type[RdukitError], text: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=text):
        compile_model(Forward(function), samba.randn(2, 2, name="x"), None, tmp_path)
    assert not (tmp_path / "out").exists()


def test_two_inputs_of_one_name_are_refused(tmp_path: Path) -> None:
    pair = samba.randn(8, 16, name="image"), samba.randint(4, (8,), name="image")
    with pytest.raises(TraceError, match="two inputs are called 'image'"):
        compile_model(LogReg(), pair, None, tmp_path)


def test_inputs_without_a_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"input 0 of shape \[8, 16\] has no name"):
        compile_model(LogReg(), (samba.randn(8, 16), samba.randint(4, (8,), name="label")), None, tmp_path)
    with pytest.raises(TraceError, match="from_torch_tensor"):
        compile_model(LogReg(), (torch.randn(8, 16), torch.randint(4, (8,))), None, tmp_path)


def test_a_model_that_was_not_converted_is_refused(tmp_path: Path) -> None:
    net = LogReg()
    with pytest.raises(CompileError, match=r"'lin_layer\.weight' was not converted.*from_torch_model_"):
        samba.session.compile(net, classifier_inputs(), None, config_dict={"output_folder": str(tmp_path / "out")})
    samba.from_torch_model_(net)
    stranger = samba.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(CompileError, match="not converted"):
        compile_model(net, classifier_inputs(), stranger, tmp_path)
    other = nn.Linear(2, 2)
    samba.from_torch_model_(other)
    with pytest.raises(CompileError, match="'linear__weight', which the model does not have"):
        compile_model(net, classifier_inputs(), sgd(other.parameters()), tmp_path)
    assert not (tmp_path / "out").exists()


def test_two_optimizers_of_one_parameter_are_refused(tmp_path: Path) -> None:
    net = LogReg()
    pair = [sgd(net.parameters()), sgd(net.parameters())]
    with pytest.raises(CompileError, match="two optimizers"):
        compile_model(net, classifier_inputs(), pair, tmp_path)


def test_torchs_own_optimizer_is_refused_with_the_legal_ones(tmp_path: Path) -> None:
    net = LogReg()
    with pytest.raises(CompileError, match="SGD, AdamW"):
        compile_model(net, classifier_inputs(), torch.optim.SGD(net.parameters(), lr=0.1), tmp_path)


def test_a_compile_that_fails_leaves_an_older_pef_alone(compiled: Loaded, tmp_path: Path) -> None:
    before = Path(compiled.pef).read_bytes()
    bad = Forward(branch)
    with pytest.raises(TraceError):
        compile_model(bad, samba.randn(2, 2, name="x"), None, tmp_path)
    assert Path(compiled.pef).read_bytes() == before


# -- names -------------------------------------------------------------------------------------------------------------


class WithBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(16, 4)
        self.register_buffer("offset", torch.zeros(4))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.lin(image) + self.offset
        return made


@pytest.mark.parametrize(
    "name",
    [
        "withbuffer__lin__weight", "withbuffer__offset", "withbuffer__lin__linear__outputs__0",
        "withbuffer__add__outputs__0", "withbuffer__lin__bias__sgd0__momentum", "withbuffer__add__outputs__0__grad",
    ],
)  # fmt: skip
def test_an_input_with_the_name_of_another_tensor_is_refused(name: str, tmp_path: Path) -> None:
    net = WithBuffer()
    samba.from_torch_model_(net)
    with pytest.raises(CompileError, match=f"'{name}'.*name"):
        compile_model(net, samba.randn(8, 16, name=name), sgd(net.parameters()), tmp_path)
    assert not (tmp_path / "out").exists()


def test_two_parameters_of_one_name_are_refused(tmp_path: Path) -> None:
    """Of one model they get different names; what two conversions named alike before is the program's to change."""
    layers = [samba.from_torch_model_(nn.Linear(2, 2)) for _ in range(2)]

    with pytest.raises(CompileError, match=r"two tensors are called 'linear__weight'.*parent_module_prefix"):
        compile_model(nn.Sequential(*layers), samba.randn(2, 2, name="x"), None, tmp_path)


# -- the retraced graph ------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self, factor: float = 2.0, before: bool = True, extra: bool = False) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.factor, self.before, self.extra = factor, before, extra

    def forward(self, x: torch.Tensor) -> Any:
        a, b = self.lin(x), x * self.factor
        made = a - b if self.before else b - a
        return torch.relu(made.relu() if self.extra else made)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"factor": 3.0}, r"operator 1, 'mul' in module 'forward', has other .*mul\(x, 3\.0\)"),
        ({"before": False}, r"operator 2, 'sub' .*sub\(scaled__mul__outputs__0, scaled__lin__linear__outputs__0\)"),
        ({"extra": True}, r"'scaled__relu_1__outputs__0' is not in|operators, the PEF has"),
    ],
)  # fmt: skip
def test_a_retraced_graph_that_differs_names_the_first_difference(
    change: dict[str, Any], text: str, tmp_path: Path
) -> None:
    pef = compile_model(Scaled(), samba.randn(2, 4, name="x"), None, tmp_path)
    other = Scaled(**change)
    samba.from_torch_model_(other)
    with pytest.raises(PefMismatch, match=text):
        utils.trace_graph(other, samba.randn(2, 4, name="x"), None, pef=pef)


# -- rule files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mine:\n  priority: 1\n  heuristc: SAFE_GEMM\n  pattern:\n    a:\n      op_type: linear\n",
         [r"mine\.yaml", "line 3", "heuristc", "heuristic"]),
        ("mine:\n  priority: 1\n  pattern:\n    a:\n      op_typ: linear\n",
         [r"mine\.yaml", "line 5", "op_typ", "op_type"]),
        ("mine:\n  priority: 1\n  pattern:\n    a:\n      op_type: linear\n      child: b\n",
         [r"mine\.yaml", "mine", "'b'"]),
        ("mine:\n  pattern: [\n", [r"mine\.yaml", "line"]),
    ],
)  # fmt: skip
def test_a_rule_file_with_a_typo_is_refused_before_anything_is_compiled(
    text: str, words: list[str], tmp_path: Path
) -> None:
    rules = tmp_path / "mine.yaml"
    rules.write_text(text)
    with pytest.raises(RuleError) as refused:
        compile_model(LogReg(), classifier_inputs(), None, tmp_path, optim_level="o1", optimization_rules=str(rules))
    for word in words:
        assert re.search(word, str(refused.value)), (word, str(refused.value))
    assert not (tmp_path / "out").exists()


def test_a_rule_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RdukitError, match=r"nowhere\.yaml"):
        compile_model(
            LogReg(), classifier_inputs(), None, tmp_path, optim_level="o1", optimization_rules="nowhere.yaml"
        )
