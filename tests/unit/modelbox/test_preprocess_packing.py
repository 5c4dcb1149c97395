"""Packing articles into sequences, spreading records over files, evening files out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdukit.errors import IllegalValue
from rdukit_modelbox.preprocessing.external_shuffle import Assignment, plan_splits
from rdukit_modelbox.preprocessing.packing import Packer, Tokens, TokenType
from rdukit_modelbox.preprocessing.token_dataset import plan_balance
from support import shows

pytestmark = shows("preprocess")

CONFIGS = ("full", *(f"{s}::{o}" for s in ("single", "greedy") for o in ("drop", "truncate_left", "truncate_right")))
PAD = -1


def units(*articles: list[int]) -> Tokens:
    ids = [token for article in articles for token in article]
    return Tokens(np.array(ids, np.int32), np.ones(len(ids), np.int32), np.array([len(a) for a in articles], np.int64))


def packed(config: str, length: int, batches: list[list[list[int]]]) -> tuple[list[list[int]], Packer]:
    packer = Packer(length, config, PAD)
    rows = [packer.pack(units(*batch)) for batch in batches]
    rows.append(packer.finish())
    for row in rows:
        assert ((row.ids_RL == PAD) == (row.types_RL == TokenType.PADDING)).all()
    return [ids for row in rows for ids in row.ids_RL.tolist()], packer


@pytest.mark.parametrize(
    ("config", "rows", "dropped"),
    [
        ("full", [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, PAD, PAD]], 0),
        ("single::drop", [[1, 2, PAD], [3, PAD, PAD], [8, PAD, PAD], [9, 10, PAD]], 4),
        ("single::truncate_left", [[1, 2, PAD], [3, PAD, PAD], [5, 6, 7], [8, PAD, PAD], [9, 10, PAD]], 1),
        ("single::truncate_right", [[1, 2, PAD], [3, PAD, PAD], [4, 5, 6], [8, PAD, PAD], [9, 10, PAD]], 1),
        ("greedy::drop", [[1, 2, 3], [8, 9, 10]], 4),
        ("greedy::truncate_left", [[1, 2, 3], [5, 6, 7], [8, 9, 10]], 1),
        ("greedy::truncate_right", [[1, 2, 3], [4, 5, 6], [8, 9, 10]], 1),
    ],
)
def test_each_packing_fills_rows_in_its_own_way(config: str, rows: list[list[int]], dropped: int) -> None:
    articles = [[1, 2], [3], [4, 5, 6, 7], [8], [9, 10]]
    found, packer = packed(config, 3, [articles])
    assert found == rows
    assert (packer.dropped_tokens, packer.cut_units) == (dropped, 0 if config == "full" else 1)


def test_an_article_that_is_dropped_closes_the_row_before_it() -> None:
    # As generative_data_prep does it: a row ends as soon as an article does not fit, even one that is then dropped.
    assert packed("greedy::drop", 3, [[[1], [2, 3, 4, 5], [6]]])[0] == [[1, PAD, PAD], [6, PAD, PAD]]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(CONFIGS),
    st.integers(1, 6),
    st.lists(st.lists(st.integers(0, 9), max_size=3).map(lambda sizes: [[s] * s for s in sizes]), max_size=5),
)
def test_packing_does_not_depend_on_how_articles_come(config: str, length: int, batches: list[list[list[int]]]) -> None:
    together, one = packed(config, length, [[article for batch in batches for article in batch]])
    apart, other = packed(config, length, batches)
    assert together == apart
    assert one.dropped_tokens == other.dropped_tokens
    tokens = sum(len(article) for batch in batches for article in batch)
    assert sum(token != PAD for row in together for token in row) + one.dropped_tokens == tokens


def test_a_packing_that_is_not_there_is_refused_with_those_that_are() -> None:
    for config in ("single", "full::drop", "greedy::cut", ""):
        with pytest.raises(IllegalValue, match=r"full, single::drop, .* greedy::truncate_right"):
            Packer(8, config, 0)


def test_unshuffled_records_go_to_the_files_in_turn() -> None:
    assignment = Assignment((1 / 3,) * 3, 4, None)
    files = np.concatenate([assignment.take(count)[0] for count in (5, 0, 7, 9000)])
    assert files.tolist() == [index % 3 for index in range(9012)]


def test_shuffled_records_are_spread_by_the_seed_and_the_shares_alone() -> None:
    shares = tuple(split.share for split in plan_splits(1, 4, 0.1, 0.2))
    one = Assignment(shares, 3, 7)
    files, buckets = one.take(10_000)
    other = Assignment(shares, 3, 7)
    parts = [other.take(count) for count in (1, 4095, 1, 5903)]
    assert np.concatenate([part[0] for part in parts]).tolist() == files.tolist()
    assert np.concatenate([part[1] for part in parts]).tolist() == buckets.tolist()
    assert np.bincount(files) / 10_000 == pytest.approx(np.array(shares), abs=2e-3)
    assert set(buckets.tolist()) == {0, 1, 2}
    assert Assignment(shares, 3, 8).take(100)[0].tolist() != files[:100].tolist()


def test_files_are_planned_by_size_and_ratios() -> None:
    def counts(*arguments: float) -> dict[str, int]:
        kinds = [split.kind for split in plan_splits(*arguments)]  # type: ignore[arg-type]
        return {kind: kinds.count(kind) for kind in ("train", "dev", "test")}

    assert counts(10_000, 0, 0.0, 0.0) == {"train": 1, "dev": 0, "test": 0}
    assert counts(5 << 20, 0, 0.05, 0.0) == {"train": 5, "dev": 1, "test": 0}
    assert [counts(gigabytes << 30, 0, 0, 0)["train"] for gigabytes in (1, 10, 100)] == [32, 128, 256]
    assert counts(1, 32, 0.1, 0.1) == {"train": 32, "dev": 4, "test": 4}
    assert [split.name for split in plan_splits(1, 2, 0.5, 0)] == [
        "train_1_of_2",
        "train_2_of_2",
        "dev_1_of_2",
        "dev_2_of_2",
    ]
    with pytest.raises(IllegalValue, match="leave no training data"):
        plan_splits(1, 1, 0.5, 0.5)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8))
def test_evening_out_moves_only_the_ends_of_files(rows: list[int]) -> None:
    targets, moves = plan_balance(rows)
    assert sum(targets) == sum(rows)
    assert max(targets) - min(targets) <= 1
    left = list(rows)
    for move in moves:
        assert move.stop == left[move.donor]
        left[move.donor] = move.start
        assert move.start >= targets[move.donor]
    gained = [sum(m.stop - m.start for m in moves if m.receiver == index) for index in range(len(rows))]
    assert [count + more for count, more in zip(left, gained, strict=True)] == targets
