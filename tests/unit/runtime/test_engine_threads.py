"""How many threads a run has: the lease's cores, somebody's choice, or one where the work is small."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, TensorSpec
from rdukit.pef.model import Cost
from rdukit.system.cpu import usable_cores
from rdukit_runtime.engine.portable import build_portable
from rdukit_runtime.engine.threads import (
    LeasedThreads,
    gains_from_threads,
    is_chosen_count,
    max_threads,
)  # fmt: skip
from support import shows

pytestmark = shows("engine", "settings")


def cost(flops: int = 0, moved: int = 0) -> Cost:
    return Cost(1, flops, moved, 0, 0, 1e-6)


SMALL, LARGE, WIDE = cost(1_000_000, 10_000), cost(100_000_000, 1_000_000), cost(1_000_000, 100_000_000)


@pytest.fixture(autouse=True)
def same_threads_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RDUKIT_ENGINE_THREADS"):
        monkeypatch.delenv(name, raising=False)
    former = torch.get_num_threads()
    yield
    torch.set_num_threads(former)


def test_a_run_of_small_sections_has_one_thread() -> None:
    assert not gains_from_threads([SMALL] * 500)
    assert not gains_from_threads([])


@pytest.mark.parametrize("section", [LARGE, WIDE])
def test_a_run_of_large_sections_has_the_cores_of_its_lease(section: Cost) -> None:
    assert gains_from_threads([SMALL, section, SMALL])


def test_one_large_section_among_many_small_ones_is_not_enough() -> None:
    assert not gains_from_threads([SMALL] * 1000 + [LARGE])


def test_no_run_has_more_threads_than_its_lease_or_the_process_has_cores() -> None:
    assert max_threads(16, 2, 0, 16, is_chosen=False) == 2
    assert max_threads(16, 16, 0, 4, is_chosen=False) == 4
    assert max_threads(8, 16, 0, 16, is_chosen=False) == 8  # two hardware threads a core: torch takes the half
    assert max_threads(1, 0, 0, 1, is_chosen=False) == 1


def test_a_choice_wins_over_the_lease_and_the_setting_over_both() -> None:
    assert max_threads(3, 2, 0, 16, is_chosen=True) == 3
    assert max_threads(3, 2, 5, 16, is_chosen=True) == 5
    assert max_threads(3, 2, 99, 16, is_chosen=False) == 16


def test_torch_at_its_default_is_nobodys_choice() -> None:
    assert not is_chosen_count(16, {}, 16, 16)
    assert not is_chosen_count(8, {}, 16, 16)
    assert not is_chosen_count(16, {}, 16, 2)  # the process was bound to two cores after torch had started
    assert is_chosen_count(3, {}, 16, 16)
    assert is_chosen_count(16, {"OMP_NUM_THREADS": "16"}, 16, 16)
    assert not is_chosen_count(16, {"OMP_NUM_THREADS": ""}, 16, 16)


def test_a_run_borrows_torchs_threads_and_gives_them_back() -> None:
    torch.set_num_threads(usable_cores())
    threads = LeasedThreads(1)
    former = threads.begin(True)
    assert torch.get_num_threads() == 1
    threads.end(former)
    assert torch.get_num_threads() == usable_cores()


def test_what_a_program_chooses_after_loading_counts_too() -> None:
    chosen = usable_cores() + 5
    threads = LeasedThreads(1)
    torch.set_num_threads(chosen)
    former = threads.begin(True)
    assert torch.get_num_threads() == chosen == threads.most
    threads.end(former)
    assert torch.get_num_threads() == chosen


def test_the_same_costs_decide_the_same_everywhere() -> None:
    assert gains_from_threads([LARGE]) and not gains_from_threads([SMALL])


class Seen(TorchDispatchMode):
    """Notes with how many threads each operator is called."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.threads[str(func)] = torch.get_num_threads()
        return func(*args, **(kwargs or {}))


def test_what_several_indices_name_is_added_in_one_thread() -> None:
    """torch adds f32 numbers by atomic operations where there are several: other last bits in each run."""
    specs = (
        TensorSpec("t", "float32", (5, 4), (4, 1)),
        TensorSpec("i", "int64", (9,), (1,)),
        TensorSpec("g", "float32", (9, 4), (4, 1)),
    )
    nodes = (
        KernelNode("v", "aten.index_put.default", (Ref("t"), [Ref("i")], Ref("g"), True), {}),
        KernelNode("w", "aten.neg.default", (Ref("v"),), {}),
    )
    kernel = build_portable(KernelGraph(specs, nodes, ("w",)))
    inputs = torch.zeros(5, 4), torch.arange(9) % 5, torch.ones(9, 4)
    torch.set_num_threads(2)
    with Seen() as seen:
        (made,) = kernel(inputs, {})
    assert seen.threads == {"aten.index_put.default": 1, "aten.neg.default": 2}
    assert made[:, 0].tolist() == [-2, -2, -2, -2, -1] and torch.get_num_threads() == 2
