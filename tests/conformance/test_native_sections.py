"""Native sections in lists: slots and their handles, repeated runs, threads, failures.

The kernels of all cases are built together.
"""

import ctypes
import shutil
import threading
import time
import warnings

import pytest
import torch

from rdukit.errors import SectionFailed
from rdukit.pef import Cost, Graph, Pef, Section, SectionResources, SectionType, Symbol, SymbolKind
from rdukit.pef.kernel import check_kernel
from rdukit_compiler.backend.native_worker import common_kernel, write_section
from rdukit_compiler.backend.routes import Routes
from rdukit_node.status_page import HOST
from rdukit_runtime.engine.device_tensors import persistent_layout
from rdukit_runtime.engine.native import NativeKernel, NativeSteps, fill_handles, take_handles
from rdukit_runtime.engine.program import LoadedProgram
from rdukit_runtime.engine.threads import LeasedThreads
from support import shows
from support.native_sections import SectionCase, build_sections, numbers

pytestmark = [shows("engine", "native"), pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")]


@pytest.fixture(scope="module")
def kernels() -> dict[str, NativeKernel]:
    pair = [numbers(8), numbers(8)]
    return build_sections(
        {
            "sum and product": SectionCase(lambda a, b: (a + b, a * b), pair),
            "twice": SectionCase(lambda a: (a + 1,) * 2, [numbers(8)]),
            "lookup": SectionCase(lambda t, i: (t[i] + 1,), [numbers(5, 4), torch.tensor([1, 2])]),
            "long": SectionCase(lambda a: (a @ a @ a @ a,), [numbers(700, 700)]),
        }
    )


def test_a_list_hands_values_on_and_empties_slots_after_their_last_use(kernels: dict[str, NativeKernel]) -> None:
    kernel = kernels["sum and product"]
    a, b = numbers(8), torch.full((8,), 0.5)
    handles = (ctypes.c_void_p * 6)()
    fill_handles(handles, [0, 1], [a, b])
    steps = NativeSteps([(kernel, (0, 1), (2, 3), (), ()), (kernel, (2, 3), (4, 5), (), (2, 3))])
    durations = (ctypes.c_int64 * 2)()
    steps.run(handles, durations)
    assert [bool(handle) for handle in handles] == [True, True, False, False, True, True]
    total, product = take_handles(handles, [4, 5])
    assert torch.equal(total, (a + b) + (a * b)) and torch.equal(product, (a + b) * (a * b))
    assert min(durations) > 0
    take_handles(handles, [0, 1])


def test_an_output_with_a_place_of_its_own_is_copied_there(kernels: dict[str, NativeKernel]) -> None:
    kernel = kernels["sum and product"]
    a, place = numbers(8), torch.zeros(8)
    handles = (ctypes.c_void_p * 3)()
    fill_handles(handles, [0, 1], [a, place])
    NativeSteps([(kernel, (0, 1), (1, 2), (0,), ())]).run(handles)
    assert torch.equal(place, a)
    take_handles(handles, [0, 1, 2])


def test_what_a_section_puts_out_twice_has_a_handle_in_each_slot(kernels: dict[str, NativeKernel]) -> None:
    twice, pair = kernels["twice"], kernels["sum and product"]
    a = numbers(8)
    handles = (ctypes.c_void_p * 5)()
    fill_handles(handles, [0], [a])
    NativeSteps([(twice, (0,), (1, 2), (), ())]).run(handles)
    assert handles[1] != handles[2]
    NativeSteps([(twice, (0,), (1, 2), (), ()), (pair, (2, 0), (3, 4), (), (2,))]).run(handles)
    kept, total, _ = take_handles(handles, [1, 3, 4])
    assert torch.equal(kept, a + 1) and torch.equal(total, (a + 1) + a)
    places = [torch.zeros(8), torch.zeros(8)]
    fill_handles(handles, [1, 2], places)
    NativeSteps([(twice, (0,), (1, 2), (0, 1), ())]).run(handles)
    assert torch.equal(places[0], a + 1) and torch.equal(places[1], a + 1)
    take_handles(handles, [0, 1, 2])


def test_a_section_that_fails_says_why_and_later_ones_do_not_run(kernels: dict[str, NativeKernel]) -> None:
    lookup, pair = kernels["lookup"], kernels["sum and product"]
    handles = (ctypes.c_void_p * 5)()
    fill_handles(handles, [0, 1], [numbers(5, 4), torch.tensor([1, 99])])
    steps = NativeSteps([(lookup, (0, 1), (2,), (), ()), (pair, (2, 2), (3, 4), (), ())])
    with pytest.raises(RuntimeError, match="index out of bounds"):
        steps.run(handles)
    assert steps.failed_step == 0 and not handles[2] and not handles[3]
    take_handles(handles, [0, 1])
    with pytest.raises(RuntimeError, match="no value"):
        steps.run(handles)


def test_other_python_threads_run_while_sections_compute(kernels: dict[str, NativeKernel]) -> None:
    kernel = kernels["long"]
    a = numbers(700, 700)
    longest, ended = [0.0], threading.Event()

    def watch() -> None:
        last = time.perf_counter()
        while not ended.is_set():
            now = time.perf_counter()
            longest[0] = max(longest[0], now - last)
            last = now
            time.sleep(0)

    handles = (ctypes.c_void_p * 41)()
    fill_handles(handles, [0], [a])
    steps = NativeSteps([(kernel, (0,), (1 + i,), (), (1 + i,)) for i in range(40)])
    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    steps.run(handles)
    took = time.perf_counter() - began
    ended.set()
    watcher.join()
    take_handles(handles, [0])
    assert longest[0] < took / 2, "the watcher stood still while the list ran"


def test_tensors_live_no_longer_than_their_slots(kernels: dict[str, NativeKernel]) -> None:
    kernel = kernels["sum and product"]
    a, b = numbers(8), numbers(8)
    counts = a._use_count(), b._use_count()
    for _ in range(3):
        kernel([a, b], {})
    assert (a._use_count(), b._use_count()) == counts


def _lookup_program(kernel: NativeKernel) -> LoadedProgram:
    table, at = (
        Symbol("t", SymbolKind.PARAMETER, "float32", (5, 4), "float32", "t"),
        Symbol("i", SymbolKind.INPUT, "int64", (2,), "int64", "i"),
    )
    rows = Symbol("y", SymbolKind.OUTPUT, "float32", (2, 4), "float32", "y")
    section = Section(
        0, "fwd", SectionType.FWD, "g", "digest", ("t", "i"), ("y",), (), None, "default", "test",
        SectionResources(1, 1, 1, 8), Cost(10, 4, 8, 8, 8, 1e-6),
    )  # fmt: skip
    pef = Pef(
        name="p", mode="o3", arch="sn10", num_tiles=1, precision="f32", inference=True, compiler_version="0",
        torch_version="0", cpu_capability="", graphs={"g": Graph("g", ("i",), ("y",), (0,), {}, (), {})},
        symbols={s.name: s for s in (table, at, rows)}, sections=(section,), hyperparameters={}, signature={},
    )  # fmt: skip
    _, size = persistent_layout(pef)
    return LoadedProgram(pef, {"digest": kernel}, memoryview(bytearray(size)), threads=LeasedThreads(1))


def test_a_repeated_run_is_a_run_and_is_counted_as_one(kernels: dict[str, NativeKernel]) -> None:
    program = _lookup_program(kernels["lookup"])
    table = numbers(5, 4)
    program.write("t", table)
    at, rows = torch.tensor([1, 2]), torch.empty(2, 4)
    graph = program.find_graph(None)
    call = program.repeated(graph, (0,), {}, [("i", at)], [("y", rows)])
    for chosen in ([1, 2], [4, 0]):
        at.copy_(torch.tensor(chosen))
        times = call()
        assert torch.equal(rows, table[at] + 1) and torch.equal(program.read("y"), rows)
        assert min(times) > 0
    page = program.page.read()
    assert (page.runs, page.sections, page.cycles) == (2, 2, 20)
    assert (page.pcie_rx, page.pcie_tx) == (2 * at.nbytes + table.nbytes, 4 * rows.nbytes)
    assert program.counters.runs == 2 and program.counters.host_seconds > 0
    program.run(graph, (0,), {})
    assert torch.equal(program.read("y"), rows)


def test_a_repeated_run_that_fails_says_where_and_the_next_one_works(kernels: dict[str, NativeKernel]) -> None:
    program = _lookup_program(kernels["lookup"])
    program.write("t", numbers(5, 4))
    at, rows = torch.tensor([1, 99]), torch.empty(2, 4)
    call = program.repeated(program.find_graph(None), (0,), {}, [("i", at)], [("y", rows)])
    with pytest.raises(SectionFailed, match=r"section 'fwd' failed: .*index out of bounds"):
        call()
    assert program.page.read().phase == HOST
    at.fill_(3)
    call()
    assert torch.equal(rows, numbers(5, 4)[at] + 1)


def test_the_kernel_that_workers_are_warmed_up_with_has_a_native_form() -> None:
    kernel = common_kernel()
    check_kernel(kernel)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # inductor's own, as it is imported
        code = write_section(kernel, Routes())
    assert "cpp_fused_" in code
