"""A small, complete PEF: two sections (forward and optimizer) of a 3 → 2 linear layer with mean-square loss."""

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rdukit.files.atomic import sha256_of
from rdukit.pef.file import INDEX, IR_FOLDER, NATIVE_FOLDER, write_pef
from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, Special, TensorSpec
from rdukit.pef.model import Cost, Graph, Pef, Section, SectionResources, SectionType, Symbol, SymbolKind


def example_kernels() -> dict[str, KernelGraph]:
    """Return the kernels of ``example_pef`` by digest: forward first."""
    forward = KernelGraph(
        inputs=(
            TensorSpec("x", "float32", (4, 3), (3, 1)),
            TensorSpec("weight", "float32", (2, 3), (3, 1)),
            TensorSpec("bias", "float32", (2,), (1,)),
        ),
        nodes=(
            KernelNode("turned", "aten.t.default", (Ref("weight"),)),
            KernelNode("y", "aten.addmm.default", (Ref("bias"), Ref("x"), Ref("turned"))),
            KernelNode("y32", "aten._to_copy.default", (Ref("y"),), {"dtype": Special("dtype", "float32")}),
            KernelNode("loss", "aten.mean.default", (Ref("y32"),)),
        ),
        outputs=("loss", "y"),
    )
    step = KernelGraph(
        inputs=(TensorSpec("weight", "float32", (2, 3), (3, 1)),),
        nodes=(KernelNode("new", "aten.mul.Scalar", (Ref("weight"), 0.5)),),
        outputs=("new",),
    )
    return {kernel.digest(): kernel for kernel in (forward, step)}


def example_pef() -> Pef:
    """Return a valid ``Pef`` whose kernels are ``example_kernels``."""
    forward, step = example_kernels()
    symbols = (
        Symbol("x", SymbolKind.INPUT, "float32", (4, 3), "float32", "region.x"),
        Symbol("weight", SymbolKind.PARAMETER, "float32", (2, 3), "float32", "region.weight"),
        Symbol("weight.next", SymbolKind.PARAMETER, "float32", (2, 3), "float32", "region.weight"),
        Symbol("bias", SymbolKind.PARAMETER, "float32", (2,), "float32", "region.bias"),
        Symbol("y", SymbolKind.OUTPUT, "float32", (4, 2), "bfloat16", "region.y"),
        Symbol("loss", SymbolKind.OUTPUT, "float32", (), "float32", "region.loss"),
        Symbol("loss.seed", SymbolKind.SEED, "float32", (), "float32", "region.seed"),
    )
    sections = (
        Section(
            id=0, name="linear", type=SectionType.FWD, graph="main", kernel=forward, inputs=("x", "weight", "bias"),
            outputs=("loss", "y"), operators=("fc", "to", "mean"), rule="SAFE_GEMM", heuristic="gemm",
            why="nothing follows that would fit", resources=SectionResources(1, 12, 9, 4608),
            cost=Cost(cycles=132_000, flops=56, bytes_in=48, bytes_out=36, bytes_weights=32, seconds=0.0001),
        ),
        Section(
            id=1, name="sgd", type=SectionType.OPT, graph="main", kernel=step, inputs=("weight",),
            outputs=("weight.next",), operators=("sgd.weight",), rule=None, heuristic="default",
            why="optimizer sections stand alone", resources=SectionResources(1, 1, 2, 48),
            cost=Cost(cycles=131_000, flops=6, bytes_in=24, bytes_out=24, bytes_weights=0, seconds=0.0001),
        ),
    )  # fmt: skip
    main = Graph(
        name="main", inputs=("x",), outputs=("loss", "y"), schedule=(0, 1), seeds={"loss": "loss.seed"},
        losses=("loss",), gradients={},
    )  # fmt: skip
    return Pef(
        name="example", mode="O1", arch="sn10", num_tiles=1, precision="f32", inference=False,
        compiler_version="0.1.0", torch_version="2.13.0", cpu_capability="", graphs={"main": main},
        symbols={s.name: s for s in symbols}, sections=sections, hyperparameters={"lr": 0.25},
        signature={"inputs": {"x": [4, 3]}}, metadata={"program": "example.py", "options": {"batch_size": 4}},
    )  # fmt: skip


def write_example_pef(path: Path, natives: bool = False) -> Path:
    """Write ``example_pef`` to ``path``; ``natives`` adds a (not loadable) library for the forward kernel."""
    kernels = example_kernels()
    libraries = {next(iter(kernels)): b"\x7fELF not really\n" * 64} if natives else {}
    write_pef(path, example_pef(), kernels, libraries)
    return path


def forge_pef(path: Path, change: Callable[[dict[str, Any], dict[str, Any], dict[str, bytes]], None]) -> Path:
    """Change a PEF as somebody does who knows the format: all digests and names fit afterwards, the signature does not.

    Args:
        change: gets the index, the kernels' JSON by the digests that they had, and the other entries, and changes them.
    """
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist() if name != INDEX}
        index = json.loads(archive.read(INDEX))
    kernels = {
        name.removeprefix(IR_FOLDER): json.loads(entries.pop(name))
        for name in list(entries)
        if name.startswith(IR_FOLDER)
    }
    change(index, kernels, entries)
    for former, kernel in kernels.items():
        data = json.dumps(kernel, sort_keys=True, separators=(",", ":")).encode()
        digest = sha256_of(data)
        entries[IR_FOLDER + digest] = data
        if (library := entries.pop(f"{NATIVE_FOLDER}{former}.so", None)) is not None:
            entries[f"{NATIVE_FOLDER}{digest}.so"] = library
        sections = index["pef"].get("sections")
        for section in sections if isinstance(sections, list) else ():
            if isinstance(section, dict) and section.get("kernel") == former:
                section["kernel"] = digest
    index["digests"] = {name: sha256_of(data) for name, data in entries.items()}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(INDEX, json.dumps(index))
        for name, data in entries.items():
            archive.writestr(name, data)
    return path


def training_pef() -> Pef:
    """Return ``example_pef`` with a reduce of 400 MB between forward and opt; only its cost means anything."""
    pef, size = example_pef(), 400_000_000
    opt = pef.sections[1]
    cost = replace(opt.cost, bytes_in=size, bytes_out=size, seconds=0.02, memory_s=0.01, launch_s=0.0001)
    reduce = replace(opt, id=2, name="reduce", type=SectionType.REDUCE, cost=cost)
    graph = replace(pef.graphs["main"], schedule=(0, 2, 1))
    return replace(pef, sections=(*pef.sections, reduce), graphs={"main": graph})
