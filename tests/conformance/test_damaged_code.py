"""The kernel check finds damage that is done to the C++ of a section after it was written: loops that begin or end
wrongly, sums that begin with the wrong number, and memory that is another's.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, packed_spec
from rdukit.pef.units import Outcome, Unit
from rdukit_compiler.backend.measure_routes import load_routes
from rdukit_compiler.backend.native_worker import write_section
from rdukit_compiler.backend.section_library import compile_sections
from rdukit_runtime.check.children import JudgedFiles, judge_all
from support import shows

pytestmark = [shows("native", "native-kernels"), pytest.mark.long]

#: Damage that the check does not find (``docs/native-kernels.md``): guards lie around inputs, not around results.
MISSED = {"a number behind the results"}

_TAIL = "static_cast<int64_t>(5L)"
_PLACE = "tmp3.store(out_ptr2 + static_cast<int64_t>(x1 + 37L*x0)"
#: Name → what stands in the C++, and what takes its place everywhere. A row is four vectors of eight, and five numbers.
DAMAGE: Mapping[str, tuple[str, str]] = {
    "largest begins with zero": ("-std::numeric_limits<float>::infinity()", "0.0f"),
    "largest begins with the lowest": (
        "-std::numeric_limits<float>::infinity()", "std::numeric_limits<float>::lowest()"),
    "largest without the last": (
        f"max_masked_reduce(tmp_acc0_vec, tmp0, {_TAIL})", "max_masked_reduce(tmp_acc0_vec, tmp0, 4)"),
    "sum of what lies behind the row": (
        f"sum_masked_reduce(tmp_acc0_vec, tmp4, {_TAIL})", "tmp_acc0_vec + tmp4"),
    "loop without its tail": ("C10_UNLIKELY(x1 >= static_cast<int64_t>(32L)", "C10_UNLIKELY(x1 >= 40"),
    "sum goes on at the next row": ("float tmp_acc0 = 0;", "static float tmp_acc0 = 0;"),
    "rows of another length": (_PLACE, _PLACE.replace("37L", "36L")),
    "a number behind the results": (f"{_PLACE}, {_TAIL})", f"{_PLACE}, 6)"),
}  # fmt: skip


def softmax_unit(number: int) -> Unit:
    """Softmax of rows, with their largest numbers. ``number`` is in its digest."""
    nodes = [
        ("aten.amax.default", Ref("x"), [1], True), ("aten.sub.Tensor", Ref("x"), Ref("v0")),
        ("aten.exp.default", Ref("v1")), ("aten.sum.dim_IntList", Ref("v2"), [1], True),
        ("aten.div.Tensor", Ref("v2"), Ref("v3")),
    ]  # fmt: skip
    made = tuple(KernelNode(f"v{n}", op, tuple(args)) for n, (op, *args) in enumerate(nodes))
    inputs = (packed_spec("x", "float32", (5, 37)), packed_spec(f"unread{number}", "float32", (1,)))
    return Unit(KernelGraph(inputs, made, ("v4", "v0")))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Outcome]:
    """The outcome by name of the damage; ``none``: of what was written."""
    folder: Path = tmp_path_factory.mktemp("damaged")
    units, codes = {}, {}
    for number, (name, (old, new)) in enumerate({"none": ("", ""), **DAMAGE}.items()):
        units[name] = softmax_unit(number)
        with warnings.catch_warnings(action="ignore"):  # inductor warns while it is imported
            code = write_section(units[name].forward, load_routes())
        assert old in code, f"{name}: inductor writes otherwise now"
        codes[units[name].forward.digest()] = code.replace(old, new) if old else code
    for digest, library in compile_sections(codes, load_routes().definitions()).items():
        (folder / f"{digest}.so").write_bytes(library)
    for unit in units.values():
        (folder / f"{unit.digest}.unit").write_bytes(unit.to_json())
    found: dict[str, Outcome] = {}
    names = iter(units)
    files = JudgedFiles(folder, [unit.digest for unit in units.values()], is_full=True)
    judge_all(files, lambda _, verdict: found.update({next(names): verdict.outcome}))
    return found


@pytest.mark.parametrize("name", ["none", *DAMAGE])
def test_damaged_code_is_refused(outcomes: Mapping[str, Outcome], name: str) -> None:
    is_right = name == "none" or name in MISSED
    assert outcomes[name] is (Outcome.RIGHT if is_right else Outcome.REFUSED)
