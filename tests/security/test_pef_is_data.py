"""A PEF from anywhere is data: what its kernels name is checked before anything of it is used."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rdukit.errors import PefCorrupt, PefError, PefNotAllowed
from rdukit.pef import read_pef
from rdukit.pef.file import write_pef
from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, TensorSpec
from rdukit.pef.operators import TEXTS, WORDS, find_signature, operator_lines
from rdukit_runtime.engine.portable import build_portable
from rdukit_runtime.engine.program import LoadedProgram
from support import shows
from support.pefs.examples import example_kernels, example_pef, forge_pef, write_example_pef

pytestmark = shows("security", "portable")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))


def forge_node(path: Path, node: list[Any]) -> Path:
    """The example PEF with another node in the place of its optimizer kernel's."""

    def change(index: dict[str, Any], kernels: dict[str, Any], entries: dict[str, bytes]) -> None:
        (kernel,) = (kernel for kernel in kernels.values() if kernel["outputs"] == ["new"])
        kernel["nodes"] = [node]

    return forge_pef(write_example_pef(path), change)


#: What reads, writes or makes files, memory of others, random numbers, or code.
ATTACKS: dict[str, list[Any]] = {
    "reads-a-file": ["new", "aten.from_file.default", ["/etc/passwd", False, 100], {"dtype": {"dtype": "uint8"}}],
    "makes-a-file": ["new", "aten.from_file.default", ["/tmp/made", True, 100], {"dtype": {"dtype": "uint8"}}],
    "saves": ["new", "aten.save.default", [{"ref": "weight"}, "/tmp/made"], {}],
    "profiles": ["new", "profiler._record_function_enter_new.default", ["x", None], {}],
    "calls-inductor": ["new", "inductor.resize_storage_bytes_.default", [{"ref": "weight"}, 1 << 40], {}],
    "resizes": ["new", "aten.resize_.default", [{"ref": "weight"}, [1 << 20]], {}],
    "takes-storage": ["new", "aten.set_.source_Storage", [{"ref": "weight"}, None], {}],
    "takes-storage-of-another": ["new", "aten.set_.source_Tensor", [{"ref": "weight"}, {"ref": "weight"}], {}],
    "seeds-random-numbers": ["new", "aten.manual_seed.default", [7], {}],
    "reads-unchecked-memory": ["new", "aten._reshape_alias.default", [{"ref": "weight"}, [1 << 30], [1]], {}],
    "loads-quantized-code": ["new", "quantized.linear_prepack.default", [{"ref": "weight"}, None], {}],
    "talks-to-others": ["new", "c10d.barrier.default", [], {}],
    "loads-a-library": ["new", "_c10d_functional.all_reduce.default", [{"ref": "weight"}, "sum", "0"], {}],
    "reaches-into-python": ["new", "aten.__class__.__init__", [], {}],
    "loads-a-file-of-libraries": ["new", "loaded_libraries.add.default", [], {}],
    "names-nothing": ["new", "", [], {}],
    "names-a-path": ["new", "aten.mul.Scalar.__globals__", [], {}],
    "names-an-unknown-operator": ["new", "aten.no_such_operator.default", [], {}],
    "names-a-program's-operator": ["new", "mylib.run.default", [{"ref": "weight"}], {}],
    "reads-an-image": ["new", "image.read_file.default", ["/etc/passwd"], {}],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_pef_cannot_name_what_the_compiler_does_not_emit(attack: str, tmp_path: Path) -> None:
    path = forge_node(tmp_path / "e.pef", ATTACKS[attack])
    with pytest.raises(PefNotAllowed, match="operator"):
        read_pef(path)
    assert not Path("/tmp/made").exists()


@pytest.mark.parametrize("attack", ATTACKS)
def test_nor_can_a_kernel_that_no_pef_was_read_for(attack: str) -> None:
    name, op, _, _ = ATTACKS[attack]
    graph = KernelGraph((TensorSpec("weight", "float32", (2, 3), (3, 1)),), (KernelNode(name, op, ()),), (name,))
    with pytest.raises(PefError):
        build_portable(graph)


#: Arguments of another kind than the operator's → what the message says.
ARGUMENTS: dict[str, tuple[list[Any], str]] = {
    "text-for-a-tensor": (["new", "aten.mul.Scalar", ["/etc/passwd", 0.5], {}], "self is '/etc/passwd'"),
    "text-for-a-number": (["new", "aten.mul.Scalar", [{"ref": "weight"}, "0.5"], {}], "other is '0.5'"),
    "a-word-that-is-none": (["new", "aten.gelu.default", [{"ref": "weight"}], {"approximate": "/etc"}], "approximate"),
    "too-many": (["new", "aten.mul.Scalar", [{"ref": "weight"}, 0.5, 1], {}], "has 3 arguments; expected 2"),
    "too-few": (["new", "aten.mul.Scalar", [{"ref": "weight"}], {}], "lacks other"),
    "twice": (["new", "aten.mul.Scalar", [{"ref": "weight"}, 0.5], {"other": 1}], "has parameter 'other'"),
    "out": (["new", "aten.mul.Scalar", [{"ref": "weight"}, 0.5], {"out": {"ref": "weight"}}], "has parameter 'out'"),
    "another-device": (
        ["new", "aten.zeros.default", [[2, 3]], {"device": {"device": "cuda:7"}}], "device is"
    ),
    "another-layout": (["new", "aten.zeros.default", [[2, 3]], {"layout": {"layout": "sparse_coo"}}], "layout is"),
    "a-dtype-that-is-none": (["new", "aten.zeros.default", [[2, 3]], {"dtype": {"dtype": "load"}}], "dtype is"),
    "a-number-beyond-64-bits": (["new", "aten.zeros.default", [[1 << 70]], {}], "size is"),
    "a-scalar-that-is-none": (["new", "aten.mul.Scalar", [{"ref": "weight"}, {"scalar": "token"}], {}], "no value"),
    "a-float-that-is-code": (["new", "aten.mul.Scalar", [{"ref": "weight"}, {"float": "__import__"}], {}], "other is"),
    "getitem-of-a-name": (["new", "getitem", [{"ref": "weight"}, "__class__"], {}], "takes a value and a position"),
}  # fmt: skip


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_of_another_kind_are_refused(case: str, tmp_path: Path) -> None:
    node, message = ARGUMENTS[case]
    with pytest.raises(PefCorrupt, match=message):
        read_pef(forge_node(tmp_path / "e.pef", node))


def other_input_shape(index: dict[str, Any], kernels: dict[str, Any], entries: dict[str, bytes]) -> None:
    """Let a section bind a larger tensor than its kernel takes."""
    index["pef"]["symbols"]["x"]["shape"] = [400, 3]


def other_input_dtype(index: dict[str, Any], kernels: dict[str, Any], entries: dict[str, bytes]) -> None:
    """Let a section bind a tensor of another dtype."""
    index["pef"]["symbols"]["x"]["dtype"] = "int64"


def other_inputs(index: dict[str, Any], kernels: dict[str, Any], entries: dict[str, bytes]) -> None:
    """Exchange two inputs."""
    index["pef"]["sections"][0]["inputs"] = ["x", "bias", "weight"]


def negative_strides(index: dict[str, Any], kernels: dict[str, Any], entries: dict[str, bytes]) -> None:
    """Give a kernel's inputs strides that leave their memory."""
    for kernel in kernels.values():
        kernel["inputs"][0][3] = [-(1 << 40), 1]


@pytest.mark.parametrize("change", [other_input_shape, other_input_dtype, other_inputs, negative_strides])
def test_sections_bind_what_their_kernels_take(
    change: Callable[[dict[str, Any], dict[str, Any], dict[str, bytes]], None], tmp_path: Path
) -> None:
    with pytest.raises(PefCorrupt, match=r"kernel that is|kernel input"):
        read_pef(forge_pef(write_example_pef(tmp_path / "e.pef"), change))


def test_what_a_program_registered_runs_only_from_a_pef_that_was_compiled_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, step = example_kernels()
    own = KernelGraph(
        example_kernels()[step].inputs, (KernelNode("new", "mylib.halve.default", (Ref("weight"),)),), ("new",)
    )
    pef = example_pef()
    (first, second) = pef.sections
    changed = replace(pef, sections=(first, replace(second, kernel=own.digest())))
    path = tmp_path / "own.pef"
    write_pef(path, changed, {forward: example_kernels()[forward], own.digest(): own}, {})
    assert read_pef(path).kernels[own.digest()] == own
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(PefNotAllowed, match=r"operators of a program's own .*mylib.halve.default.*compile the program"):
        read_pef(path)


def test_a_compile_that_emits_an_operator_beyond_the_list_writes_nothing(tmp_path: Path) -> None:
    _, step = example_kernels()
    bad = KernelGraph(example_kernels()[step].inputs, (KernelNode("new", "aten.from_file.default", ("x",)),), ("new",))
    with pytest.raises(PefNotAllowed, match=r"aten\.from_file\.default"):
        write_pef(tmp_path / "e.pef", example_pef(), {step: bad}, {})
    assert not (tmp_path / "e.pef").exists()


def test_a_kernel_that_makes_another_shape_than_its_symbol_is_refused_when_it_runs(tmp_path: Path) -> None:
    def change(index: dict[str, Any], kernels: dict[str, Any], entries: dict[str, bytes]) -> None:
        index["pef"]["symbols"]["y"]["shape"] = [1, 2]

    loaded = read_pef(forge_pef(write_example_pef(tmp_path / "e.pef"), change))
    kernels = {digest: build_portable(graph) for digest, graph in loaded.kernels.items()}
    program = LoadedProgram(loaded.pef, kernels, memoryview(bytearray(1 << 16)))
    program.write("x", torch.ones(4, 3))
    with pytest.raises(PefCorrupt, match=r"declares 'y' with shape \[1, 2\], but its kernel returns \[4, 2\]"):
        program.run(loaded.pef.graphs["main"], (0,), {"lr": 0.1})


def test_no_operator_of_the_list_takes_a_file_a_storage_or_a_generator() -> None:
    plain = {"tensor", "scalar", "int", "float", "bool", "text", "dtype", "layout", "device", "memory_format"}
    for op in operator_lines():
        signature = find_signature(op)
        assert signature is not None
        for parameter in (*signature.positional, *signature.named):
            kind = parameter.kind.replace("?", "").replace("[]", "")
            # a generator is refused whatever it is, so one that may be None is None
            assert kind in plain or parameter.kind == "generator?", (op, parameter)
            assert kind != "text" or parameter.name in {*WORDS, *TEXTS}, (op, parameter)
