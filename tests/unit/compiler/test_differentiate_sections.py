"""Sections' kernels: forward and backward agree with autograd, however the graph is cut."""

import pytest
import torch
from torch import nn

import sambaflow.samba as samba
from rdukit.pef.kernel import KernelGraph, check_kernel
from rdukit_compiler.passes.assign_precision import Precision, assign_precision
from rdukit_compiler.passes.differentiate import build_kernels, section_inputs, section_outputs
from rdukit_runtime.engine.portable import build_portable
from sambaflow.tracing.tracer import trace_model
from support import shows

pytestmark = shows("pytorch", "precision")


class Block(nn.Module):
    """A residual block whose middle value is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.down = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.norm(self.up(x)))
        return self.down(hidden) * hidden + hidden


def traced_block(training: bool = True, precision: str = "f32"):
    torch.manual_seed(0)
    model = Block()
    samba.from_torch_model_(model)
    traced = trace_model(model, samba.randn(3, 6, name="x"), "block")
    return model, traced, assign_precision(traced.graph, Precision(precision, training))


def run(kernel: KernelGraph, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    check_kernel(kernel)
    with torch.no_grad():
        return list(build_portable(kernel)(inputs, {}))


def test_a_section_of_the_whole_graph_has_the_gradients_of_autograd() -> None:
    model, traced, graph = traced_block()
    (output,) = graph.outputs
    kernels = build_kernels(graph, graph.operators, Precision("f32", True), {output: 1})
    values = {"x": torch.randn(3, 6), **{name: p.data for name, p in traced.state.items()}}
    made = run(kernels.forward, [values[name] for name in kernels.inputs])
    tangent = torch.randn(3, 8)
    saved = [
        values[s.value] if s.value in values else made[1 + s.index] if s.value is None else made[0]
        for s in kernels.saved
    ]
    gradients = dict(zip(kernels.gradients, run(kernels.backward, [*saved, tangent]), strict=True))
    expected = samba.to_torch(model(samba.SambaTensor(values["x"], name="x")))
    torch.testing.assert_close(made[0], expected)
    expected.backward(tangent)
    assert set(gradients) == set(traced.state)
    for name, parameter in traced.state.items():
        torch.testing.assert_close(gradients[name], parameter.grad)


def test_gradients_from_several_readers_are_added_inside_the_backward() -> None:
    _, _, graph = traced_block()
    (output,) = graph.outputs
    one = build_kernels(graph, graph.operators, Precision("f32", True), {output: 1})
    two = build_kernels(graph, graph.operators, Precision("f32", True), {output: 2})
    assert len(two.backward.inputs) == len(one.backward.inputs) + 1


def test_a_section_without_incoming_gradient_has_no_backward() -> None:
    _, _, graph = traced_block()
    assert build_kernels(graph, graph.operators, Precision("f32", True), {}).backward is None


def test_an_inference_compile_needs_no_gradient_anywhere() -> None:
    _, _, graph = traced_block(training=False)
    assert not any(value.requires_grad for value in graph.values.values())


@pytest.mark.parametrize("cut", range(1, 6))
def test_inputs_and_outputs_of_a_cut_meet(cut: int) -> None:
    _, _, graph = traced_block()
    first, second = graph.operators[:cut], graph.operators[cut:]
    handed_over = set(section_outputs(graph, first)) - set(graph.outputs)
    assert handed_over == {n for n in section_inputs(graph, second) if n in graph.producers()}


def test_equal_sections_have_equal_kernels_whatever_their_names() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    samba.from_torch_model_(model)
    graph = assign_precision(trace_model(model, samba.randn(2, 4, name="x"), "pair").graph, Precision("f32", False))
    kernels = [build_kernels(graph, [operator], Precision("f32", False), {}) for operator in graph.operators]
    assert kernels[0].forward.digest() == kernels[1].forward.digest()


def test_bf16_rounds_parameters_where_they_are_read_and_keeps_masters() -> None:
    _, _, graph = traced_block(precision="bf16")
    assert graph.values["block__up__weight"].dtype == "float32"
    assert graph.values["x"].dtype == "bfloat16"
    assert graph.values[graph.outputs[0]].dtype == "bfloat16"


def test_tracing_touches_no_weight() -> None:
    with torch.device("meta"):
        model = Block()
    samba.from_torch_model_(model)
    traced = trace_model(model, samba.randn(3, 6, name="x"), "block")
    assert traced.graph.values[traced.graph.outputs[0]].shape == (3, 8)
    assert all(p.device.type == "meta" for p in model.parameters())


class Fading(nn.Module):
    """A product with a buffer that forward halves afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("scale", torch.tensor([2.0, 4.0, 8.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = x * self.weight * self.scale
        self.scale.mul_(0.5)
        return made


def test_a_backward_reads_a_buffer_as_it_was_before_forward_updated_it() -> None:
    model = Fading()
    samba.from_torch_model_(model)
    traced = trace_model(model, samba.randn(1, 3, name="x"), "fading")
    graph = assign_precision(traced.graph, Precision("f32", True))
    output = graph.outputs[0]
    kernels = build_kernels(graph, graph.operators, Precision("f32", True), {output: 1})
    values = {"x": torch.ones(1, 3), **{name: value.data.clone() for name, value in traced.state.items()}}
    made = run(kernels.forward, [values[name] for name in kernels.inputs])
    values |= dict(zip(kernels.outputs, made, strict=False))
    for buffer, update in graph.updates.items():  # as the engine does between forward and backward
        values[buffer].copy_(values[update])
    extras = made[len(kernels.outputs) :]
    saved = [extras[each.index] if each.value is None else values[each.value] for each in kernels.saved]
    gradients = dict(zip(kernels.gradients, run(kernels.backward, [*saved, torch.ones(1, 3)]), strict=True))
    (weight,) = kernels.gradients
    torch.testing.assert_close(gradients[weight], torch.tensor([2.0, 4.0, 8.0]))
    assert [values[buffer].tolist() for buffer in graph.updates] == [[1.0, 2.0, 4.0]]
