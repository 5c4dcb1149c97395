"""``rdukit debug`` names the first wrong section and operator of compiled models with seeded numeric faults."""

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file
from torch import nn

from rdukit.pef.file import LoadedPef, read_pef, write_pef
from rdukit.pef.kernel import Argument, KernelGraph, KernelNode, Ref, Special, parse_operator
from rdukit.pef.model import Section
from rdukit.system.cpu import native_signature
from rdukit_compiler.backend.measure_routes import load_routes
from rdukit_compiler.backend.native_worker import write_section
from rdukit_runtime.check.sections import FaultKind
from rdukit_serving.device.debug_command import debug
from sambaflow import samba
from support import shows
from support.native_libraries import keep
from support.programs import compile_model

pytestmark = shows("debug")

LENGTH: Final = 4
BF16, F16, F32 = (Special("dtype", name) for name in ("bfloat16", "float16", "float32"))
#: Operator, further arguments, named ones: each node reads the value of the one before.
Node = tuple[str, tuple[Argument, ...], dict[str, Argument]]


def node(op: str, *args: Argument, **named: Argument) -> Node:
    return op, args, named


class MaskedBlock(nn.Module):
    """A block of a transformer with a mask: (x [B, L, D], mask [B, L, L] bool) → y [B, L, D]."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        scores = self.query(h) @ self.key(h).transpose(1, 2) / 4
        weights = scores.masked_fill(~mask, float("-inf")).softmax(2)
        x = x + self.out(weights @ self.value(h))
        made: torch.Tensor = x + self.down(torch.nn.functional.gelu(self.up(self.second(x))))
        return made


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> LoadedPef:
    """The block without native kernels, in sections of several operators."""
    torch.manual_seed(0)
    mask = samba.from_torch_tensor(torch.ones(2, LENGTH, LENGTH, dtype=torch.bool), name="mask", batch_dim=0)
    inputs = samba.randn(2, LENGTH, 16, name="x", batch_dim=0), mask
    config = {"optim_level": "o1", "precision": "f32", "kernels": "portable"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_KERNELS", "portable")
        path = compile_model(MaskedBlock(), inputs, None, tmp_path_factory.mktemp("block"), **config)
    return read_pef(path)


def section_with(block: LoadedPef, word: str) -> Section:
    """Return the first section with an operator of this name."""
    return next(
        section for section in block.pef.sections
        if any(parse_operator(each.op).word == word for each in block.kernels[section.kernel].nodes)
    )  # fmt: skip


def after(kernel: KernelGraph, word: str, made: Sequence[Node]) -> KernelGraph:
    """Return a kernel in which nodes follow the first operator of a name, and all later ones read their result."""
    place = next(n for n, each in enumerate(kernel.nodes) if parse_operator(each.op).word == word)
    last, added = kernel.nodes[place].name, []
    for number, (op, args, named) in enumerate(made):
        added.append(KernelNode(f"seeded_{number}", op, (Ref(last), *args), named))
        last = added[-1].name
    former = kernel.nodes[place].name

    def moved(argument: Argument) -> Argument:
        if isinstance(argument, list):
            return [moved(each) for each in argument]
        return Ref(last) if argument == Ref(former) else argument

    rest = [
        replace(each, args=tuple(map(moved, each.args)), kwargs={name: moved(v) for name, v in each.kwargs.items()})
        for each in kernel.nodes[place + 1 :]
    ]
    outputs = tuple(last if name == former else name for name in kernel.outputs)
    return KernelGraph(kernel.inputs, (*kernel.nodes[: place + 1], *added, *rest), outputs)


def run_debug(path: Path, *arguments: object) -> tuple[int, str, str]:
    """Return section, kind and operator of the first fault that the command names."""
    shown = CliRunner().invoke(debug, [str(path), *map(str, arguments), "--json"], catch_exceptions=False)
    assert shown.exit_code == 1
    first = next(row for row in json.loads(shown.stdout) if row["faults"])
    fault = first["faults"][0]
    return first["id"], fault["kind"], fault["operator"]


SEEDED: Final[dict[str, tuple[str, list[Node], FaultKind, str]]] = {
    "a difference in bf16": (
        "gelu",
        [node("aten.add.Tensor", 1000.0), node("aten._to_copy.default", dtype=BF16),
         node("aten._to_copy.default", dtype=F32), node("aten.sub.Tensor", 1000.0)],
        FaultKind.PRECISION, "_to_copy",
    ),
    "half precision for large numbers": (
        "bmm",
        [node("aten.add.Tensor", 1e5), node("aten._to_copy.default", dtype=F16),
         node("aten._to_copy.default", dtype=F32)],
        FaultKind.OVERFLOW, "_to_copy",
    ),
    "half precision for small numbers": (
        "gelu",
        [node("aten.mul.Tensor", 1e-6), node("aten._to_copy.default", dtype=F16),
         node("aten._to_copy.default", dtype=F32), node("aten.mul.Tensor", 1e6)],
        FaultKind.PRECISION, "_to_copy",
    ),
    "an exponential without the maximum": (
        "bmm", [node("aten.add.Tensor", 100.0), node("aten.exp.default")], FaultKind.OVERFLOW, "exp",
    ),
    "the logarithm of a negative number": (
        "gelu", [node("aten.sub.Tensor", 10.0), node("aten.log.default")], FaultKind.NAN, "log",
    ),
    "the root of a negative variance": (
        "gelu", [node("aten.sub.Tensor", 10.0), node("aten.sqrt.default")], FaultKind.NAN, "sqrt",
    ),
    "a mean over no elements": (
        "gelu", [node("aten.mul.Tensor", 0.0), node("aten.reciprocal.default")], FaultKind.OVERFLOW, "reciprocal",
    ),
    "a scale that overflows": ("bmm", [node("aten.add.Tensor", 2.0), node("aten.mul.Tensor", 3e38)],
                               FaultKind.OVERFLOW, "mul.Tensor"),
}  # fmt: skip


@pytest.mark.parametrize("fault", SEEDED)
def test_a_seeded_fault_is_found_in_its_section_and_operator(block: LoadedPef, tmp_path: Path, fault: str) -> None:
    word, nodes, kind, operator = SEEDED[fault]
    wrong = section_with(block, word)
    assert wrong.id > 0, "sections before it are right"
    kernel = after(block.kernels[wrong.kernel], word, nodes)
    pef = replace(
        block.pef,
        sections=tuple(
            replace(each, kernel=kernel.digest()) if each.id == wrong.id else each for each in block.pef.sections
        ),
    )
    used = {each.kernel for each in pef.sections}
    kernels = {digest: graph for digest, graph in block.kernels.items() if digest in used}
    write_pef(tmp_path / "wrong.pef", pef, {**kernels, kernel.digest(): kernel}, {})
    assert run_debug(tmp_path / "wrong.pef") == (wrong.id, kind.value, operator)


def test_a_row_that_is_masked_altogether_is_found_in_the_softmax(block: LoadedPef, tmp_path: Path) -> None:
    mask = torch.ones(2, LENGTH, LENGTH, dtype=torch.bool)
    mask[1, 2] = False
    save_file({"mask": mask}, tmp_path / "batch.safetensors")
    found = run_debug(block.path, "--inputs", tmp_path / "batch.safetensors")
    assert found == (section_with(block, "_softmax").id, FaultKind.NAN.value, "_softmax")


def test_a_parameter_that_overflowed_is_found_where_it_is_read_first(block: LoadedPef, tmp_path: Path) -> None:
    weights = {name: tensor.clone() for name, tensor in MaskedBlock().state_dict().items()}
    weights["up.weight"][3, 1] = float("inf")
    save_file(weights, tmp_path / "model.safetensors")
    section, kind, operator = run_debug(block.path, "--checkpoint", tmp_path / "model.safetensors")
    assert any("up__weight" in name for name in block.pef.sections[section].inputs)
    assert (kind, operator) == (FaultKind.OVERFLOW.value, "input")


def without_residual(kernel: KernelGraph) -> KernelGraph:
    """A rule that takes the last addition into its section and loses one of its operands."""
    last = kernel.nodes[-1]
    return KernelGraph(kernel.inputs, (*kernel.nodes[:-1], replace(last, args=(last.args[0], 0.0))), kernel.outputs)


def with_another_epsilon(kernel: KernelGraph) -> KernelGraph:
    """A rule that takes the norm into its section with an epsilon of its own."""
    nodes = tuple(
        replace(each, args=(*each.args[:-1], 0.1)) if parse_operator(each.op).word == "native_layer_norm" else each
        for each in kernel.nodes
    )
    return KernelGraph(kernel.inputs, nodes, kernel.outputs)


@pytest.mark.long  # each compiles a section
@pytest.mark.parametrize(
    ("rule", "operator", "change"),
    [("gpt_ffn", "add.Tensor", without_residual), ("gpt_proj_norm", "native_layer_norm", with_another_epsilon)],
)
def test_a_wrong_rule_is_found_in_the_section_that_it_made(
    block: LoadedPef, tmp_path: Path, rule: str, operator: str, change: Callable[[KernelGraph], KernelGraph]
) -> None:
    section = next(each for each in block.pef.sections if each.rule == rule)
    kernel, routes = block.kernels[section.kernel], load_routes()
    wrong = change(kernel)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # inductor warns while it is imported
        (library,) = keep(
            {kernel.digest(): f"{wrong.digest()} as {kernel.digest()}, {routes.word()}"}, routes.definitions(),
            lambda _: write_section(wrong, routes),
        ).values()  # fmt: skip
    pef = replace(block.pef, cpu_capability=native_signature())
    write_pef(tmp_path / "wrong.pef", pef, block.kernels, {kernel.digest(): library})
    assert run_debug(tmp_path / "wrong.pef") == (section.id, FaultKind.NATIVE.value, operator)
