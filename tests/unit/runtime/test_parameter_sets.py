"""Parameters in memory of their own: taken in place of a program's, and given back, without a copy."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rdukit.errors import InvalidArgument, PefCorrupt, PefMismatch, PefVersionMismatch, ShapeMismatch
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
from rdukit.pef.memory import parameter_layout, persistent_layout
from rdukit.pef.model import pef_from_dict, pef_to_dict
from rdukit_runtime.engine.parameter_sets import ParameterSet, write_parameters
from rdukit_runtime.engine.portable import build_portable
from rdukit_runtime.engine.program import LoadedProgram
from support import shows

pytestmark = shows("bundles", "engine")

KERNEL = KernelGraph(
    tuple(TensorSpec(name, "float32", (2,), (1,)) for name in ("x", "w", "b")),
    (
        KernelNode("h", "aten.mul.Tensor", (Ref("x"), Ref("w"))),
        KernelNode("y", "aten.add.Tensor", (Ref("h"), Ref("b"))),
    ),
    ("y",),
)


def make_pef(*others: Symbol) -> Pef:
    """A PEF that computes x * w + b, of which w and b are in a checkpoint, and whose cache is not."""
    kinds = {
        "x": SymbolKind.INPUT, "w": SymbolKind.PARAMETER, "b": SymbolKind.BUFFER, "cache": SymbolKind.BUFFER,
        "y": SymbolKind.OUTPUT,
    }  # fmt: skip
    symbols = {name: Symbol(name, kind, "float32", (2,), "float32", name) for name, kind in kinds.items()}
    symbols |= {each.name: each for each in others}
    section = Section(
        0, "s", SectionType.FWD, "g", KERNEL.digest(), ("x", "w", "b"), ("y",), (), None, "default", "test",
        SectionResources(1, 1, 1, 8), Cost(10, 4, 8, 8, 8, 1e-6),
    )  # fmt: skip
    writes = replace(section, id=1, inputs=("x",), outputs=("cache",))
    return Pef(
        name="p", mode="o3", arch="sn10", num_tiles=1, precision="f32", inference=True, compiler_version="0",
        torch_version="0", cpu_capability="", graphs={"g": Graph("g", ("x",), ("y",), (0,), {}, (), {})},
        symbols=symbols, sections=(section, writes), hyperparameters={}, signature={},
    )  # fmt: skip


def values(first: float) -> list[tuple[str, torch.Tensor]]:
    return [("w", torch.tensor([first, 2 * first], dtype=torch.float64)), ("b", torch.tensor([1.0, 1.0]))]


def test_a_program_takes_parameters_from_one_set_and_another_and_its_own_again(tmp_path: Path) -> None:
    pef = make_pef()
    assert set(parameter_layout(pef)[0]) == {"w", "b"}
    memory = memoryview(bytearray(persistent_layout(pef)[1]))
    program = LoadedProgram(pef, {KERNEL.digest(): build_portable(KERNEL)}, memory)
    program.write_all([("x", torch.tensor([1.0, 1.0])), *values(10.0)])
    graph = program.find_graph(None)
    sets = []
    for number in (1, 2):
        write_parameters(pef, values(float(number)), tmp_path / str(number))
        sets.append(ParameterSet(pef, tmp_path / str(number)))
        sets[-1].touch()

    def result(parameters: ParameterSet | None) -> list[float]:
        program.use(parameters)
        program.run(graph, (0,), {})
        return program.read("y").tolist()  # type: ignore[no-any-return]

    expected = {sets[0]: [2.0, 3.0], sets[1]: [3.0, 5.0], None: [11.0, 21.0]}
    for parameters in (sets[0], sets[1], None, None, sets[1], sets[0], None):
        assert result(parameters) == expected[parameters]
    sets[0].close()
    sets[0].close()
    assert result(sets[1]) == expected[sets[1]]
    assert result(None) == expected[None]
    # What is written while a set is used is the set's alone, and stays in memory: its file is not changed.
    program.use(sets[1])
    program.write("b", torch.tensor([5.0, 5.0]))
    assert result(sets[1]) == [7.0, 9.0] and result(None) == expected[None]
    assert result(ParameterSet(pef, tmp_path / "2")) == expected[sets[1]]


@pytest.mark.parametrize(
    ("stored", "scales"), [(("int8", (3, 96)), ("float32", (3,))), (("uint8", (3, 3, 16)), ("bfloat16", (3, 3)))]
)
def test_weights_of_few_bits_are_written_as_the_program_itself_writes_them(
    tmp_path: Path, stored: tuple[str, tuple[int, ...]], scales: tuple[str, tuple[int, ...]]
) -> None:
    weight = Symbol("q", SymbolKind.PARAMETER, *stored, "float32", "q", scale="q_scale")
    pef = make_pef(weight, Symbol("q_scale", SymbolKind.PARAMETER, *scales, scales[0], "q_scale"))
    torch.manual_seed(0)
    value = torch.randn(3, 96)
    program = LoadedProgram(pef, {KERNEL.digest(): build_portable(KERNEL)}, memoryview(bytearray(1024)))
    program.write("q", value)
    write_parameters(pef, [("q", value)], tmp_path / "set")
    tensors = ParameterSet(pef, tmp_path / "set").tensors
    torch.testing.assert_close(program.read("q"), value, rtol=0, atol=0.5)
    with pytest.raises(ShapeMismatch, match=r"compiled for \[3, 96\]"):
        program.write("q", value[:, :64])
    with pytest.raises(InvalidArgument, match=r"compiled for \[3, 96\]"):
        write_parameters(pef, [("q", value[:, :64])], tmp_path / "bad")
    for name in ("q", "q_scale"):
        assert torch.equal(tensors[name].flatten(), program.device_tensor(name).flatten())
        assert tensors[name].data_ptr() % 64 == 0
    assert not tensors["w"].any()  # what a checkpoint lacks is zero
    wrong = replace(pef, symbols={**pef.symbols, "q": replace(weight, shape=(4, 96, 1))})
    with pytest.raises(PefCorrupt, match="has scales in 'q_scale' of the wrong shape or dtype"):
        pef_from_dict(pef_to_dict(wrong))


def test_four_bits_in_the_order_of_an_earlier_version_are_refused() -> None:
    weight = Symbol("q", SymbolKind.PARAMETER, "uint8", (3, 64), "float32", "q", scale="q_scale")
    earlier = make_pef(weight, Symbol("q_scale", SymbolKind.PARAMETER, "bfloat16", (3, 3), "bfloat16", "q_scale"))
    with pytest.raises(PefVersionMismatch, match="'q'; compile it again"):
        pef_from_dict(pef_to_dict(earlier))


def test_what_does_not_fit_the_pef_is_refused(tmp_path: Path) -> None:
    pef = make_pef()
    for wrong in (torch.zeros(3), torch.zeros(2, dtype=torch.int64)):
        with pytest.raises(InvalidArgument, match=r"the checkpoint has .* for 'w'"):
            write_parameters(pef, [("w", wrong)], tmp_path / "set")
    with pytest.raises(PefMismatch, match="changes 'cache' during runs"):
        write_parameters(pef, [("cache", torch.zeros(2))], tmp_path / "set")
    (tmp_path / "short").write_bytes(b"x")
    with pytest.raises(InvalidArgument, match="has 1 bytes, but the parameters of p take 128"):
        ParameterSet(pef, tmp_path / "short")
    trained = replace(pef, sections=(*pef.sections, replace(pef.sections[0], id=2, type=SectionType.OPT)))
    with pytest.raises(PefMismatch, match="is changed by runs"):
        parameter_layout(trained)
    tied = make_pef(Symbol("head", SymbolKind.PARAMETER, "float32", (2,), "float32", "w"))
    with pytest.raises(PefMismatch, match="shares its memory"):
        parameter_layout(tied)
