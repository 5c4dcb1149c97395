"""``scripts/operators.py blame`` finds the operator whose native form differs: alone, or only behind others."""

import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from opdb.blame import blame, cut, find_specs, find_unit
from rdukit.errors import NotFound
from rdukit.pef.file import read_pef
from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, packed_spec
from rdukit.pef.units import Unit
from rdukit_compiler.backend.measure_routes import load_routes
from rdukit_compiler.backend.native_worker import write_section
from sambaflow import samba
from support import shows
from support.native_libraries import keep
from support.programs import compile_model

pytestmark = [
    shows("native", "native-kernels"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler"),
]

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "operators.py"
KERNEL = KernelGraph(
    (packed_spec("x", "float32", (6, 16)),),
    (
        KernelNode("a", "aten.exp.default", (Ref("x"),)), KernelNode("b", "aten.tanh.default", (Ref("a"),)),
        KernelNode("c", "aten.sum.dim_IntList", (Ref("b"), [1])), KernelNode("d", "aten.neg.default", (Ref("c"),)),
    ),
    ("d",),
)  # fmt: skip


def write_damaged(kernel: KernelGraph, least: int) -> str:
    """Write a kernel that has so many operators with sin for tanh."""
    if len(kernel.nodes) >= least:
        nodes = tuple(replace(n, op="aten.sin.default") if n.op == "aten.tanh.default" else n for n in kernel.nodes)
        kernel = replace(kernel, nodes=nodes)
    return write_section(kernel, load_routes())


def build_damaged(folder: Path, least: int) -> None:
    """Build what a search of ``KERNEL`` asks for, damaged, with one reading of torch's headers; it finds it there."""
    specs, nodes = find_specs(KERNEL), KERNEL.nodes
    beginnings = [cut(KERNEL, nodes[:count], specs) for count in range(2, len(nodes))] if least > 1 else []
    kernels = [KERNEL, *(cut(KERNEL, [node], specs) for node in nodes), *beginnings]
    with warnings.catch_warnings(action="ignore"):  # inductor warns while it is imported
        codes = {kernel.digest(): write_damaged(kernel, least) for kernel in kernels}
    for digest, library in keep(codes, load_routes().definitions(), codes.__getitem__).items():
        (folder / f"{digest}.so").write_bytes(library)


def test_an_operator_that_differs_alone_is_found(tmp_path: Path) -> None:
    build_damaged(tmp_path, 1)
    found = blame(Unit(KERNEL), tmp_path, lambda kernel: write_damaged(kernel, 1))
    assert [(each.part, each.node.op) for each in found if each.node] == [("forward", "aten.tanh.default")]
    assert "elements differ" in str(found[0])


@pytest.mark.long
def test_an_operator_that_differs_only_behind_others_is_found(tmp_path: Path) -> None:
    build_damaged(tmp_path, 3)
    found = blame(Unit(KERNEL), tmp_path, lambda kernel: write_damaged(kernel, 3))
    assert [each.node.op for each in found if each.node] == ["aten.sum.dim_IntList"]
    assert "only with those before it" in str(found[0])


@pytest.mark.long
def test_the_script_takes_a_digest_and_a_pef(tmp_path: Path) -> None:
    x = samba.from_torch_tensor(torch.randn(4, 8), name="x")
    model = torch.nn.Tanh()
    samba.from_torch_model_(model)
    pef = compile_model(model, (x,), None, tmp_path, optim_level="o0")
    digest = next(iter(read_pef(pef).kernels))
    with pytest.raises(NotFound, match="begins with"):
        find_unit(read_pef(pef), "none")
    command = [sys.executable, SCRIPT, "blame", digest[:12], pef]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "right: no native operator of this section differs\n")
