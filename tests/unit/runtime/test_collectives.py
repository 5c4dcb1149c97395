"""How values of several ranks become one, what a world of one does, and which ranks go on after a loss."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rdukit.errors import InvalidArgument
from rdukit_runtime.collectives.group import describe
from rdukit_runtime.collectives.membership import (
    NEW,
    RankProgress,
    choose_sender,
    decide,
    is_at_step,
    must_average_again,
    read_decision,
    read_rank_progress,
)
from rdukit_runtime.collectives.stragglers import Stragglers
from rdukit_runtime.collectives.sums import CHUNK, Adder, Flat, RankMean, Reduction, check_reduction, slice_of
from rdukit_runtime.engine.collectives import all_reduce_mean, broadcast, gather_facts
from support import shows

pytestmark = shows("training", "collectives")


@pytest.mark.parametrize("reduction", list(Reduction))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_values_are_reduced_in_rank_order_in_a_wide_type_and_rounded_once(
    reduction: Reduction, dtype: torch.dtype, size: int
) -> None:
    torch.manual_seed(size)
    parts = [(torch.randn(CHUNK + 77) * 10.0 ** torch.randint(-3, 4, (CHUNK + 77,))).to(dtype) for _ in range(size)]
    result = torch.empty_like(parts[0])
    Adder().combine(parts, result, reduction)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    step = {"product": torch.mul, "min": torch.minimum, "max": torch.maximum}.get(reduction, torch.add)
    expected = parts[0].to(wide)
    for part in parts[1:]:
        expected = step(expected, part.to(wide))
    if reduction is Reduction.MEAN:
        expected = expected / size
    assert torch.equal(result, expected.to(dtype))


def test_sums_of_integers_are_exact() -> None:
    parts = [torch.tensor([2**62, -3]), torch.tensor([-(2**62), 5]), torch.tensor([1, 7])]
    result = torch.empty_like(parts[0])
    Adder().combine(parts, result, Reduction.SUM)
    assert result.tolist() == [1, 9]


@pytest.mark.parametrize(
    ("dtype", "reduction", "reason"),
    [
        (torch.bool, Reduction.SUM, "cannot be reduced"),
        (torch.complex64, Reduction.SUM, "cannot be reduced"),
        (torch.int64, Reduction.MEAN, "the mean of torch.int64"),
    ],
)
def test_what_has_no_exact_result_is_refused(dtype: torch.dtype, reduction: Reduction, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        check_reduction(dtype, reduction)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_mean_of_tensors_that_come_in_turn_has_the_bits_of_one_of_all(dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(size)
    parts = [(torch.randn(500) * 10.0 ** torch.randint(-3, 4, (500,))).to(dtype) for _ in range(size)]
    kept = [part.clone() for part in parts]
    expected = torch.empty_like(parts[0])
    Adder().combine(parts, expected, Reduction.MEAN)
    mean = RankMean()
    for part in parts:
        mean.add(part)
    assert torch.equal(mean.result(), expected)
    assert all(map(torch.equal, parts, kept))


def test_stragglers_are_those_who_came_last_and_seconds_add_up() -> None:
    table = Stragglers(range(3))
    table.note([10, 20, 10])
    table.note([0, 10**9, 2 * 10**9])
    table.note([5, 5, 5])
    rows = [(row["rank"], row["last"], row["late_s"]) for row in table.table()]
    assert rows == [(2, 1, 2.0), (1, 1, pytest.approx(1.0)), (0, 0, 0.0)]
    table.clear()
    assert [row["late_s"] for row in table.table()] == [0, 0, 0]


@given(st.integers(0, 10_000), st.integers(1, 17))
def test_slices_of_the_ranks_cover_all_elements_once(count: int, size: int) -> None:
    ends = [slice_of(count, rank, size) for rank in range(size)]
    assert [i for first, last in ends for i in range(first, last)] == list(range(count))


@given(st.lists(st.integers(0, 5), max_size=6), st.data())
def test_tensors_in_a_row_are_read_and_written_as_one(sizes: list[int], data: st.DataObject) -> None:
    tensors = [torch.arange(float(size)) + 10 * n for n, size in enumerate(sizes)]
    whole = torch.cat([torch.empty(0), *tensors])
    row = Flat(tensors)
    assert row.count == whole.numel()
    first = data.draw(st.integers(0, row.count))
    last = data.draw(st.integers(first, row.count))
    memory = torch.zeros(row.count)
    assert torch.equal(row.read(first, last, memory), whole[first:last])
    assert torch.equal(row.lend(first, last, memory), whole[first:last])
    row.write(first, last, -memory)
    whole[first:last] *= -1
    assert torch.equal(torch.cat([torch.empty(0), *tensors]), whole)


def test_many_shapes_are_announced_by_a_checksum_that_tells_them_apart() -> None:
    first = describe([torch.zeros(n) for n in (1, 2, 3, 4, 6)])
    second = describe([torch.zeros(n) for n in (1, 2, 3, 5, 5)])
    assert first.startswith("float32[1] and 4 more, 16 elements") and first != second


def test_a_world_of_one_leaves_everything_as_it_is() -> None:
    gradients = [torch.ones(3), torch.ones((), dtype=torch.bfloat16)]
    assert all_reduce_mean(gradients) is gradients
    broadcast(gradients)
    assert gather_facts(["a", 1]) == [["a", 1]]


@pytest.mark.parametrize(
    ("former", "here", "dead", "goes_on"),
    [
        ((0, 1, 2, 3), (0, 1, 3), (2,), True),
        ((0, 1, 2, 3), (3,), (0, 1, 2), True),
        ((0, 1, 2, 3), (1, 3), (0,), True),  # 2 may run
        ((0, 1, 2, 3), (0, 1), (), True),
        ((0, 1, 2, 3), (2, 3), (), False),
        ((0, 1, 2), (2,), (0,), False),
        ((0, 1, 2, 3), (1, 2), (1,), False),  # 1 has come after all, and 0 and 3 may go on
    ],
)
def test_two_parts_of_a_group_never_both_go_on(
    former: tuple[int, ...], here: tuple[int, ...], dead: tuple[int, ...], goes_on: bool
) -> None:
    verdict = decide("n", former, here, dead, 1)
    assert read_decision(verdict.text) == verdict
    assert (verdict.members, bool(verdict.refusal)) == (here, not goes_on)
    rest = [rank for rank in former if rank not in (*here, *dead)]
    if rest and goes_on:
        assert decide("n", former, rest, dead, 1).refusal


def test_a_step_is_averaged_again_only_if_no_rank_has_used_its_means() -> None:
    behind, done, ahead = RankProgress(3, True), RankProgress(4, True), RankProgress(4, False)
    assert read_rank_progress(ahead.text) == ahead
    assert must_average_again([done, ahead], done)
    assert must_average_again([behind, ahead], ahead)
    assert not must_average_again([behind, ahead], behind)
    assert not must_average_again([done, done], done)


def test_new_processes_count_as_ranks_and_have_no_say_in_who_goes_on() -> None:
    came = {2: ("host", 7)}
    verdict = decide("n", (0, 1, 2), (0, 1), (2,), 3, came)
    assert (verdict.members, verdict.lost, verdict.replaced, verdict.refusal) == ((0, 1, 2), (2,), (2,), "")
    assert read_decision(verdict.text) == verdict
    assert "2 ranks left" in decide("n", (0, 1, 2), (0, 1), (2,), 3).refusal
    assert decide("n", (0, 1, 2), (2,), (), 1, {0: ("host", 7), 1: ("host", 8)}).refusal


def test_all_average_again_with_a_new_process_which_takes_the_foremost_members_parameters() -> None:
    behind, done = RankProgress(3, True), RankProgress(4, True)
    assert read_rank_progress(NEW.text) == NEW
    assert must_average_again([behind, NEW, done], done)
    assert not must_average_again([behind, NEW, done], behind)
    assert choose_sender([NEW, behind, done, done]) == 2
    assert is_at_step([NEW, behind, done], done.steps)
    assert not is_at_step([NEW, behind, done], behind.steps), "a member that came after the offer is further"
