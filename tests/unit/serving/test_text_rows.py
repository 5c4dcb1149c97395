"""Rows of the caches: which one a text gets, what of it is there already, and whose turn it is."""

from hypothesis import given
from hypothesis import strategies as st

from rdukit_serving.text.rows import (
    TURN_RUNS,
    WORTH_COPYING,
    RowTable,
    choose_turn,
    common_length,
    part_length,
    reads_next,
)  # fmt: skip
from support import shows

pytestmark = shows("inference", "bundles")

LONG = list(range(100, 100 + 2 * WORTH_COPYING))


def end(table: RowTable, prompt: list[int], made: list[int]) -> int:
    """Let a text be read, made and ended; returns its row."""
    row = table.take(prompt).row
    row.tokens = prompt + made
    table.release(row)
    return row.number


def test_the_next_turn_of_a_chat_continues_its_row() -> None:
    table = RowTable(3)
    first = end(table, LONG, [1, 2])
    end(table, [7, 8], [9])
    place = table.take([*LONG, 1, 2, 3])
    assert (place.row.number, place.kept, place.source) == (first, len(LONG) + 2, None)


def test_instructions_in_common_are_copied_and_the_other_chat_stays() -> None:
    table = RowTable(3)
    first = end(table, [*LONG, 1], [2])
    place = table.take([*LONG, 5])
    assert place.row.number != first
    assert (place.kept, place.source) == (len(LONG), first)
    # Also from a text that is still made.
    place.row.tokens = [*LONG, 5, 6]
    assert table.take([*LONG, 5, 6, 7]).source == place.row.number


def test_the_last_token_is_read_again_and_little_is_not_copied() -> None:
    table = RowTable(2)
    end(table, LONG, [])
    assert table.take(LONG).kept == len(LONG) - 1
    table = RowTable(2)
    end(table, [1, 2, 3, 4], [])
    place = table.take([1, 2, 3, 9])
    assert (place.kept, place.source, place.row.number) == (0, None, 1)
    assert RowTable(1).take(LONG, may_keep=False).kept == 0


def test_the_row_that_was_used_least_recently_is_given_away() -> None:
    table = RowTable(2)
    rows = [end(table, [number] * 20, []) for number in range(4)]
    assert rows == [0, 1, 0, 1]


@given(st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.booleans()), max_size=30))
def test_rows_are_never_shared_and_what_is_kept_is_there(texts: list[tuple[list[int], bool]]) -> None:
    table, made = RowTable(3), []
    held: dict[int, list[int]] = {number: [] for number in range(3)}
    for prompt, ends in texts:
        if not table.has_free:
            table.release(made.pop(0))
        place = table.take(prompt)
        assert place.row not in made
        if place.source is not None:
            held[place.row.number] = list(held[place.source])
        assert held[place.row.number][: place.kept] == prompt[: place.kept]
        assert place.kept < len(prompt)
        held[place.row.number] = place.row.tokens = list(prompt)
        made.append(place.row)
        if ends:
            table.release(made.pop())


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_the_common_beginning_is_as_long_as_it_can_be(some: list[int], others: list[int]) -> None:
    length = common_length(some, others)
    assert some[:length] == others[:length]
    assert length in (len(some), len(others)) or some[length] != others[length]


def test_prompts_and_tokens_take_turns() -> None:
    assert reads_next([True], has_read=True)
    assert not reads_next([False, False], has_read=False)
    turns, has_read = [], False
    for _ in range(4):
        has_read = reads_next([True, False, True], has_read)
        turns.append(has_read)
    assert turns == [True, False, True, False]


def test_a_part_of_a_prompt_delays_other_texts_by_no_more_than_a_token_of_theirs() -> None:
    lengths, seconds = (16, 32, 64), {16: 0.01, 32: 0.02, 64: 0.04}
    assert part_length(lengths, seconds, None) == 64  # no other waits
    assert part_length(lengths, seconds, 0.05) == 64
    assert part_length(lengths, seconds, 0.02) == 32
    assert part_length(lengths, seconds, 0.001) == 16  # none is that fast: the shortest


def test_what_other_weights_made_is_of_no_use() -> None:
    table = RowTable(2)
    row = table.take(LONG, weights="poet").row
    row.tokens = [*LONG, 1]
    table.release(row)
    other = table.take([*LONG, 1, 2], weights="coder")
    assert (other.kept, other.source) == (0, None)
    assert table.take([*LONG, 1, 2], weights="poet").kept == len(LONG) + 1


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=6), st.data())
def test_experts_with_texts_take_turns(experts: list[str], data: st.DataObject) -> None:
    current, runs, turns = "", 0, []
    for _ in range(TURN_RUNS * len(set(experts)) * 2):
        chosen = choose_turn(experts, current, runs)
        if chosen != current:
            current, runs = chosen, 0
            turns.append(chosen)
        runs += 1
    assert set(turns) == set(experts)
    assert len(turns) == (1 if len(set(experts)) == 1 else 2 * len(set(experts)))
