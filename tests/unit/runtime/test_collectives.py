"""How gradients are grouped for the way, and what a world of one does."""

import torch

from rdukit_runtime.engine.collectives import all_reduce_mean, broadcast, cut_buckets, gather_facts
from support import shows

pytestmark = shows("training")


def test_gradients_travel_in_order_in_groups_of_at_most_the_given_bytes() -> None:
    gradients = [torch.zeros(n) for n in (10, 20, 5, 1)]
    assert cut_buckets(gradients, 120) == [[0, 1], [2, 3]]
    assert cut_buckets(gradients, 4) == [[0], [1], [2], [3]]
    assert cut_buckets([]) == []


def test_bf16_gradients_count_as_the_f32_in_which_they_are_added() -> None:
    assert cut_buckets([torch.zeros(10, dtype=torch.bfloat16)] * 2, 60) == [[0], [1]]


def test_f64_gradients_travel_apart() -> None:
    single, double = torch.zeros(2), torch.zeros(2, dtype=torch.float64)
    assert cut_buckets([single, double, double, single]) == [[0], [1, 2], [3]]


def test_a_world_of_one_leaves_everything_as_it_is() -> None:
    gradients = [torch.ones(3), torch.ones((), dtype=torch.bfloat16)]
    assert all_reduce_mean(gradients) is gradients
    broadcast(gradients)
    assert gather_facts(["a", 1]) == [["a", 1]]
