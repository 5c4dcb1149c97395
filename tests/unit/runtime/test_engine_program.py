"""The engine: slots, plans, what is freed, and what a run needs."""

import weakref
from collections.abc import Mapping, Sequence

import pytest
import torch

from rdukit.errors import InvalidArgument, PefCorrupt, PefNotAllowed, RuntimeFault, ShapeMismatch, UnknownTensor
from rdukit.pef import (
    Cost,
    Graph,
    KernelGraph,
    KernelNode,
    Pef,
    Ref,
    Section,
    SectionResources,
    SectionType,
    Symbol,
    SymbolKind,
    TensorSpec,
)  # fmt: skip
from rdukit.pef.kernel import Special
from rdukit_runtime.engine.device_tensors import persistent_layout
from rdukit_runtime.engine.portable import build_portable
from rdukit_runtime.engine.program import LoadedProgram, MemoryWatch
from support import shows

pytestmark = shows("engine", "security")

FWD = KernelGraph(
    (TensorSpec("x", "float32", (2,), (1,)), TensorSpec("w", "float32", (2,), (1,))),
    (KernelNode("h", "aten.mul.Tensor", (Ref("x"), Ref("w"))), KernelNode("y", "aten.sum.default", (Ref("h"),))),
    ("y", "h"),
)


def vector(name: str) -> TensorSpec:
    return TensorSpec(name, "float32", (2,), (1,))


BWD = KernelGraph(
    (vector("h"), vector("x"), TensorSpec("g", "float32", (), ())),
    (KernelNode("d", "aten.mul.Tensor", (Ref("x"), Ref("g"))),),
    ("d",),
)
OPT = KernelGraph(
    (vector("w"), vector("d"), vector("m")),
    (
        KernelNode(
            "u",
            "rdukit.sgd",
            ([Ref("w")], [Ref("d")], [Ref("m")]),
            {scalar: Special("scalar", f"sgd0.{scalar}") for scalar in ("lr", "momentum", "weight_decay")},
        ),
    ),
    (),
)


def symbol(name: str, kind: SymbolKind, shape: tuple[int, ...] = (2,), region: str = "") -> Symbol:
    return Symbol(name, kind, "float32", shape, "float32", region or name)


def section(
    number: int, kind: SectionType, kernel: KernelGraph, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> Section:
    cost = Cost(10, 4, 8, 8, 8, 1e-6)
    return Section(number, kind.value, kind, "g", kernel.digest(), inputs, outputs, (), None, "default", "test",
                   SectionResources(1, 1, 1, 8), cost)  # fmt: skip


def build_program() -> LoadedProgram:
    kernels = {k.digest(): k for k in (FWD, BWD, OPT)}
    symbols = [
        symbol("x", SymbolKind.INPUT), symbol("w", SymbolKind.PARAMETER), symbol("m", SymbolKind.STATE),
        symbol("y", SymbolKind.OUTPUT, ()), symbol("y__grad", SymbolKind.SEED, ()), symbol("h", SymbolKind.ACTIVATION),
        symbol("w__grad", SymbolKind.GRADIENT),
    ]  # fmt: skip
    pef = Pef(
        name="p", mode="o3", arch="sn10", num_tiles=1, precision="f32", inference=False, compiler_version="0",
        torch_version="0", cpu_capability="",
        graphs={"g": Graph("g", ("x",), ("y",), (0, 1, 2), {"y": "y__grad"}, ("y",), {"w": ("w__grad",)})},
        symbols={s.name: s for s in symbols},
        sections=(
            section(0, SectionType.FWD, FWD, ("x", "w"), ("y", "h")),
            section(1, SectionType.BCKWD, BWD, ("h", "x", "y__grad"), ("w__grad",)),
            section(2, SectionType.OPT, OPT, ("w", "w__grad", "m"), ()),
        ),
        hyperparameters={"sgd0.lr": 0.5, "sgd0.momentum": 0.0, "sgd0.weight_decay": 0.0}, signature={},
    )  # fmt: skip
    _, size = persistent_layout(pef)
    program = LoadedProgram(pef, {d: build_portable(k) for d, k in kernels.items()}, memoryview(bytearray(size)))
    program.write("x", torch.tensor([1.0, 2.0]))
    program.write("w", torch.tensor([3.0, 4.0]))
    return program


def run(program: LoadedProgram, *types: str) -> None:
    graph = program.find_graph(None)
    program.run(graph, program.choose_sections(graph, types or None), program.pef.hyperparameters)


def test_a_full_run_is_a_training_step() -> None:
    program = build_program()
    run(program)
    assert program.read("y").item() == 11.0
    assert program.gradient("w").tolist() == [1.0, 2.0]
    assert program.read("w").tolist() == [2.5, 3.0]


def test_a_repeated_run_copies_runs_and_copies_what_its_tensors_hold_then() -> None:
    program = build_program()
    x, y = torch.zeros(2), torch.zeros(())
    graph = program.find_graph(None)
    call = program.repeated(graph, program.choose_sections(graph, ["fwd"]), {}, [("x", x)], [("y", y)])
    for first in (1.0, 5.0):
        x.copy_(torch.tensor([first, 2.0]))
        assert min(call()) > 0
        assert y.item() == 3 * first + 8
    with pytest.raises(ShapeMismatch):
        program.repeated(graph, (0,), {}, [("x", torch.zeros(3))], [])
    with pytest.raises(UnknownTensor):
        program.repeated(graph, (0,), {}, [("y", torch.zeros(()))], [])


def test_forward_then_backward_and_optimizer_equals_one_run() -> None:
    whole, parts = build_program(), build_program()
    run(whole)
    run(parts, "FWD")
    run(parts, "bckwd", "Opt")
    assert whole.read("w").tolist() == parts.read("w").tolist()


def test_backward_needs_the_forward_first_and_says_so() -> None:
    program = build_program()
    with pytest.raises(InvalidArgument, match=r"needs 'h'.*'fwd'"):
        run(program, "bckwd")
    run(program)
    with pytest.raises(InvalidArgument, match="needs 'h'"):
        run(program, "bckwd")
    run(program, "fwd")
    run(program, "bckwd")


def test_activations_are_freed_when_their_last_section_has_run() -> None:
    program = build_program()
    run(program, "fwd")
    program.device_tensor("h")
    run(program, "bckwd")
    with pytest.raises(UnknownTensor):
        program.device_tensor("h")


def test_a_seed_stays_until_it_is_set_again() -> None:
    program = build_program()
    program.seed("y", torch.tensor(3.0))
    run(program)
    assert program.gradient("w").tolist() == [3.0, 6.0]
    program.seed("y", None)
    run(program)
    assert program.gradient("w").tolist() == [1.0, 2.0]


def test_counters_add_up_projections_and_host_time() -> None:
    program = build_program()
    run(program)
    run(program, "fwd")
    assert program.counters.runs == 2
    assert program.counters.emulated_cycles == 40
    assert program.counters.section_runs == {0: 2, 1: 1, 2: 1}
    assert program.counters.host_seconds > 0


@pytest.mark.parametrize(
    ("name", "value", "error", "says"),
    [
        ("x", torch.zeros(3), ShapeMismatch, "compiled for \\[2\\]"),
        ("z", torch.zeros(2), UnknownTensor, "its inputs are x"),
        ("y", torch.zeros(()), UnknownTensor, "made by the graph"),
    ],
)
def test_a_wrong_write_is_refused_and_changes_nothing(name, value, error, says) -> None:
    program = build_program()
    with pytest.raises(error, match=says):
        program.write(name, value)
    assert program.read("x").tolist() == [1.0, 2.0]


def test_unknown_sections_and_graphs_are_refused_with_the_legal_ones() -> None:
    program = build_program()
    graph = program.find_graph("g")
    with pytest.raises(InvalidArgument, match=r"\['fwd', 'bckwd', 'opt'\]"):
        program.choose_sections(graph, ["forward"])
    with pytest.raises(InvalidArgument, match=r"expected \[0, 1, 2\]"):
        program.choose_sections(graph, ids=[7])
    with pytest.raises(InvalidArgument, match="graphs are g"):
        program.find_graph("other")


@pytest.mark.parametrize("op", ["os.system.default", "aten.__class__.default", "aten.nothing.default", "eval"])
def test_a_kernel_reaches_only_aten_and_our_operators(op: str) -> None:
    kernel = KernelGraph((), (KernelNode("a", op, ("id",)),), ("a",))
    with pytest.raises((PefCorrupt, PefNotAllowed)):
        build_portable(kernel)


def test_shared_regions_share_memory() -> None:
    program = build_program()
    offsets, _ = persistent_layout(program.pef)
    assert len(offsets) == len({s.region for s in program.pef.symbols.values()} & set(offsets))


def test_the_last_steps_gradients_are_gone_before_new_ones_are_made() -> None:
    program = build_program()
    run(program)
    old = weakref.ref(program._slots[program._slot_of["w__grad"]])  # type: ignore[arg-type]
    backward = program.pef.sections[1].kernel
    kernel, seen = program._kernels[backward], []

    def watching(inputs: Sequence[torch.Tensor], scalars: Mapping[str, float]) -> Sequence[torch.Tensor]:
        seen.append(old() is None)
        return kernel(inputs, scalars)

    program._kernels[backward] = watching  # type: ignore[index]
    run(program, "fwd")
    assert program.gradient("w").tolist() == [1.0, 2.0], "readable until the next backward begins"
    run(program, "bckwd")
    assert seen == [True]


def test_the_watch_takes_what_the_plan_says_and_refuses_more() -> None:
    program = build_program()
    graph = program.find_graph(None)
    watch = MemoryWatch(program.pef)
    plan = watch.check(graph, graph.schedule, [])
    assert plan.end_bytes == 12, "the loss and the gradient"
    with pytest.raises(RuntimeFault, match=r"internal: after sections \[0, 1, 2\].*keeps 64 B.*plan allows 12 B"):
        watch.check(graph, graph.schedule, [torch.ones(16)])
