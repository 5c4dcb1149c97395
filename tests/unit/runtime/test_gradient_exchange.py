"""Gradients leave in groups while backward computes the next ones, are averaged in their places, and never get lost."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rdukit.errors import InvalidArgument, UnknownTensor
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
)
from rdukit.pef.kernel import Special
from rdukit_runtime.collectives.group import Collectives
from rdukit_runtime.collectives.grouping import ReadyGradient, choose_group_bytes, find_ready, group_gradients
from rdukit_runtime.collectives.sums import Reduction
from rdukit_runtime.engine.device_tensors import persistent_layout
from rdukit_runtime.engine.portable import build_portable
from rdukit_runtime.engine.program import LoadedProgram
from support import shows

pytestmark = shows("training", "collectives")

LIMIT_S = 60


class Recording(Collectives):
    """A group of one rank that adds 10 to what it averages, and knows what it was called with."""

    def __init__(self) -> None:
        super().__init__(0, 1)
        self.seen: list[str] = []
        self.has_averaged = threading.Event()
        self.failure: Exception | None = None
        self.notes: list[str] = []

    def note(self, doing: str) -> None:
        self.notes.append(doing)

    def barrier(self) -> None:
        pass

    def _all_reduce(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], reduction: Reduction, text: str
    ) -> None:
        if reduction is Reduction.MEAN:
            self.seen.append(text)
            if self.failure is not None:
                raise self.failure
            for row in outputs:
                row += 10
            self.has_averaged.set()

    def _all_gather(self, given: torch.Tensor, output: torch.Tensor, text: str) -> None:
        output.view(-1).copy_(given.view(-1))

    def _reduce_scatter(self, given: torch.Tensor, output: torch.Tensor, reduction: Reduction, text: str) -> None: ...

    def _broadcast(self, rows: Sequence[torch.Tensor], root: int, text: str) -> None: ...

    def _send(self, tensor: torch.Tensor, to: int, text: str) -> None: ...

    def _recv(self, tensor: torch.Tensor, sender: int, text: str) -> None: ...


def vector(name: str) -> TensorSpec:
    return TensorSpec(name, "float32", (2,), (1,))


#: Gradient of w2, from which that of w1 is made; averaging; the update.
LATER = KernelGraph((vector("x"),), (KernelNode("d", "aten.mul.Tensor", (Ref("x"), 2.0)),), ("d",))
EARLIER = KernelGraph((vector("x"),), (KernelNode("d", "aten.mul.Tensor", (Ref("x"), 3.0)),), ("d",))
AVERAGE = KernelGraph(
    (vector("a"), vector("b")),
    (
        KernelNode("r", "rdukit.all_reduce_mean", ([Ref("a"), Ref("b")],)),
        KernelNode("r0", "getitem", (Ref("r"), 0)), KernelNode("r1", "getitem", (Ref("r"), 1)),
    ),
    ("r0", "r1"),
)  # fmt: skip
UPDATE = KernelGraph(
    tuple(vector(name) for name in ("w1", "w2", "d1", "d2", "m1", "m2")),
    (
        KernelNode(
            "u", "rdukit.sgd", ([Ref("w1"), Ref("w2")], [Ref("d1"), Ref("d2")], [Ref("m1"), Ref("m2")]),
            {scalar: Special("scalar", f"sgd0.{scalar}") for scalar in ("lr", "momentum", "weight_decay")},
        ),
    ),
    (),
)  # fmt: skip
KERNELS = {kernel.digest(): kernel for kernel in (LATER, EARLIER, AVERAGE, UPDATE)}
GRADIENTS = ("w1__grad", "w2__grad")


def section(
    number: int, kind: SectionType, kernel: KernelGraph, inputs: tuple[str, ...], outputs: tuple[str, ...],
    shares: Mapping[str, str] | None = None,
) -> Section:  # fmt: skip
    return Section(
        number, f"{kind.value}{number}", kind, "g", kernel.digest(), inputs, outputs, (), None, "default", "test",
        SectionResources(1, 1, 1, 8), Cost(10, 4, 8, 8, 8, 1e-6), shares=shares or {},
    )  # fmt: skip


def build_pef(
    kind: SymbolKind = SymbolKind.GRADIENT, shares: Mapping[str, str] | None = None, reads: tuple[str, ...] = ()
) -> Pef:
    kinds = {
        "x": SymbolKind.INPUT, "w1": SymbolKind.PARAMETER, "w2": SymbolKind.PARAMETER, "m1": SymbolKind.STATE,
        "m2": SymbolKind.STATE, **dict.fromkeys(GRADIENTS, kind),
    }  # fmt: skip
    sections = (
        section(0, SectionType.BCKWD, LATER, ("x",), ("w2__grad",)),
        section(1, SectionType.BCKWD, EARLIER, ("x", *reads), ("w1__grad",), shares),
        section(2, SectionType.OPT, UPDATE, ("w1", "w2", *GRADIENTS, "m1", "m2"), ()),
        section(3, SectionType.REDUCE, AVERAGE, GRADIENTS, GRADIENTS),
    )
    gradients = {"w1": ("w1__grad",), "w2": ("w2__grad",)}
    return Pef(
        name="p", mode="o3", arch="sn10", num_tiles=1, precision="f32", inference=False, compiler_version="0",
        torch_version="0", cpu_capability="",
        graphs={"g": Graph("g", ("x",), (), (0, 1, 3, 2), {}, (), gradients)},
        symbols={name: Symbol(name, kind, "float32", (2,), "float32", name) for name, kind in kinds.items()},
        sections=sections, hyperparameters={"sgd0.lr": 1.0, "sgd0.momentum": 0.0, "sgd0.weight_decay": 0.0},
        signature={},
    )  # fmt: skip


def build_program(earlier: Callable[[], object] = lambda: None) -> LoadedProgram:
    """A program whose gradients are 2x and 3x; ``earlier`` is called before the second of them is made."""
    kernels = {digest: build_portable(kernel) for digest, kernel in KERNELS.items()}
    last = kernels[EARLIER.digest()]

    def watched(inputs: Sequence[torch.Tensor], scalars: Mapping[str, float]) -> Sequence[torch.Tensor]:
        earlier()
        return last(inputs, scalars)

    pef = build_pef()
    memory = memoryview(bytearray(persistent_layout(pef)[1]))
    program = LoadedProgram(pef, {**kernels, EARLIER.digest(): watched}, memory)
    program.write("x", torch.tensor([1.0, 2.0]))
    return program


@pytest.fixture(autouse=True)
def group_of_one_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_DISTRIBUTED_GROUP_BYTES", "1")


def run(program: LoadedProgram, *types: str) -> None:
    graph = program.find_graph(None)
    program.run(graph, program.choose_sections(graph, types or None), program.pef.hyperparameters)


def parameters(program: LoadedProgram) -> list[list[float]]:
    return [program.read(name).tolist() for name in ("w1", "w2")]


#: What one step makes of parameters of 0: minus the averaged gradients.
AFTER_A_STEP = [[-13.0, -16.0], [-12.0, -14.0]]


def test_a_group_is_averaged_while_the_next_section_of_backward_computes() -> None:
    group = Recording()
    program = build_program(lambda: group.has_averaged.wait(LIMIT_S) or pytest.fail("no group has left"))
    program.exchange_gradients(group)
    run(program)
    assert parameters(program) == AFTER_A_STEP
    assert [text.partition(" of ")[2] for text in group.seen] == [
        "w2__grad, after section 0",
        "w1__grad, after section 1",
    ]
    assert program.exchange is not None
    assert program.exchange.figures()["groups"] == 2


@pytest.mark.parametrize(
    ("variable", "value"), [("RDUKIT_DISTRIBUTED_OVERLAP", "0"), ("SAMBA_CCL_ASYNC_ALLREDUCE", "0")]
)
def test_without_overlap_the_groups_leave_when_backward_has_ended(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    group = Recording()
    program = build_program(lambda: group.seen and pytest.fail("a group has left"))
    program.exchange_gradients(group)
    run(program)
    assert len(group.seen) == 2
    assert parameters(program) == AFTER_A_STEP
    assert program.exchange is not None
    assert program.exchange.figures()["hidden_share"] == 0


@pytest.mark.parametrize("meets_after", ["nothing", "bckwd"])
def test_sections_one_by_one_make_a_step_as_well_whenever_the_ranks_meet(meets_after: str) -> None:
    program = build_program()
    if meets_after == "bckwd":
        run(program, "bckwd")
    program.exchange_gradients(Recording())
    if meets_after == "nothing":
        run(program, "bckwd")
    assert program.gradient("w1").tolist() == [3.0, 6.0]
    run(program, "reduce")
    assert program.gradient("w1").tolist() == [13.0, 16.0]
    run(program, "opt")
    assert parameters(program) == AFTER_A_STEP


def test_a_run_that_does_not_average_leaves_gradients_as_backward_makes_them() -> None:
    program = build_program()
    program.exchange_gradients(Recording())
    run(program, "bckwd", "opt")
    assert parameters(program) == [[-3.0, -6.0], [-2.0, -4.0]]


def test_a_handle_of_a_gradient_keeps_the_value_of_its_run() -> None:
    program = build_program()
    program.exchange_gradients(Recording())
    run(program)
    held = program.device_tensor("w1__grad")
    program.write("x", torch.zeros(2))
    run(program)
    assert held.tolist() == [13.0, 16.0]


def test_a_rank_says_which_section_of_which_line_it_is_in() -> None:
    group = Recording()
    program = build_program()
    program.exchange_gradients(group)
    line = Path(__file__).name
    run(program)
    first, *others, last = (note.rpartition(":")[0] for note in group.notes)
    assert first == f"in section bckwd0 of the run at {line}"
    assert others == [f"in section {name} of the run at {line}" for name in ("bckwd1", "reduce3", "opt2")]
    assert last == f"past the run at {line}"


def test_ranks_that_differ_end_the_run_drop_its_gradients_and_go_on() -> None:
    group = Recording()
    program = build_program()
    program.exchange_gradients(group)
    group.failure = InvalidArgument("ranks call different collectives")
    with pytest.raises(InvalidArgument, match="different collectives"):
        run(program)
    assert len(group.seen) == 1
    assert parameters(program) == [[0.0, 0.0], [0.0, 0.0]]
    with pytest.raises(UnknownTensor):
        program.gradient("w1")
    group.failure = None
    run(program)
    assert parameters(program) == AFTER_A_STEP


def test_a_section_that_fails_drops_the_groups_that_wait() -> None:
    group = Recording()

    def fail() -> None:
        raise ValueError("broken")

    program = build_program(fail)
    program.exchange_gradients(group)
    with pytest.raises(Exception, match="broken"):
        run(program)
    with pytest.raises(InvalidArgument, match="run the sections before"):
        run(program, "opt")
    assert len(group.seen) <= 1


def test_a_gradient_is_final_when_backward_has_made_it_and_reads_it_no_more() -> None:
    plain, read = build_pef(), build_pef(reads=("w2__grad",))
    found = [[(each.name, each.section) for each in find_ready(pef, pef.graphs["g"])] for pef in (plain, read)]
    assert found[0] == [("w2__grad", 0), ("w1__grad", 1)]
    assert sorted(found[1]) == [("w1__grad", 1), ("w2__grad", 1)]


@pytest.mark.parametrize("pef", [build_pef(SymbolKind.STATE), build_pef(shares={"w1__grad": "w2__grad"})])
def test_sums_over_backwards_and_gradients_in_shared_memory_have_no_places(pef: Pef) -> None:
    assert find_ready(pef, pef.graphs["g"]) == ()


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 5)), max_size=20), st.integers(1, 200))
def test_groups_hold_every_gradient_in_order_and_only_the_last_is_small(
    drawn: list[tuple[int, int]], group_bytes: int
) -> None:
    drawn.sort(key=lambda pair: pair[1])
    ready = [ReadyGradient(f"g{n}", size, number) for n, (size, number) in enumerate(drawn)]
    groups = group_gradients(ready, group_bytes)
    assert [gradient for group in groups for gradient in group.gradients] == ready
    for group in groups:
        assert group.section == group.gradients[-1].section
    for group in groups[:-1]:
        assert sum(gradient.bytes for gradient in group.gradients) >= group_bytes
    assert len({group.section for group in groups}) == len(groups)


def test_the_size_of_a_group_follows_from_latency_and_bandwidth_within_bounds() -> None:
    assert choose_group_bytes(50e-6, 4e9) == 1_800_000  # 450 µs of data for 50 µs of latency
    assert choose_group_bytes(0, 4e9) == 64 << 10
    assert choose_group_bytes(1, 4e9) == 64 << 20
