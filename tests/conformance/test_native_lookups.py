"""Native kernels of lookups and their gradients, in random layouts, give what torch gives, in one thread and in two.

The kernels of the cases that run are built in one go. ``make sanitize`` runs this file, too, and sees what a kernel
writes beyond its tensors.
"""

import hashlib
import random
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rdukit_compiler.backend.section_library import section_namespace
from rdukit_compiler.torch_private import trace_aten, without_onednn, write_code
from rdukit_runtime.engine.native import NativeKernel, load_native
from support import shows
from support.native_libraries import chosen_values, keep
from support.tiers import others_long

pytestmark = [shows("engine", "native"), pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")]

Tensors = Sequence[torch.Tensor]
#: Relative to the largest value: sums of some hundred terms in another order.
TOLERANCE = 2e-6
SEEDS = 20


@dataclass(frozen=True)
class Lookup:
    """A function of a table and of what it is read at: (table, *positions) → what was read."""

    read: Callable[..., torch.Tensor]
    inputs: Tensors

    def with_gradient(self, table: torch.Tensor, incoming: torch.Tensor, *positions: torch.Tensor) -> Any:
        """What was read, and the gradient of the table."""
        table = table.detach().requires_grad_()
        made = self.read(table, *positions)
        return made.detach(), torch.autograd.grad(made, table, incoming)[0].contiguous()

    def tensors(self) -> list[torch.Tensor]:
        """Inputs of ``with_gradient``."""
        table, *positions = self.inputs
        shape = self.read(table, *positions).shape
        return [table, torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))), *positions]


def heads_by_list(table: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Attention of many queries that share one head of keys and one of values, which lists of heads choose."""
    heads = table.view(2, 12, 6, 16)
    q, k, v = heads[..., :-2, :], heads[:, :, keys], heads[:, :, values]
    q, k, v = (part.transpose(1, 2).reshape(2, part.shape[2], 12, 16) for part in (q, k, v))
    mask = torch.ones(12, 12, dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def channels_last_embedding(table: torch.Tensor, at: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    """Embeddings beside values whose last axis lies first in memory, as a convolution makes them."""
    return (image.movedim(1, -1) * F.embedding(at, table)).tanh()


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def positions(size: int, *shape: int) -> torch.Tensor:
    """Within an axis of ``size``, from its end as well, many of them several times."""
    return torch.randint(-size, size, shape, generator=torch.Generator().manual_seed(sum(shape)))


def random_lookup(seed: int) -> Lookup:
    """A table of two to four axes, read in one of the ways that programs have, between changes of layout."""
    draw = random.Random(seed)
    shape = [draw.choice((1, 2, 5, 7, 12, 16, 17, 33)) for _ in range(draw.randint(2, 4))]
    order = tuple(draw.sample(range(len(shape)), len(shape)))
    turned = [shape[place] for place in order]
    read, at = random_reading(draw, turned)
    is_turned, is_spread = draw.random() < 0.7, draw.random() < 0.5

    def whole(table: torch.Tensor, *where: torch.Tensor) -> torch.Tensor:
        made = read(table.permute(order) * 0.5, *where)
        made = made.permute(*reversed(range(made.dim()))) if is_turned else made
        return made.unsqueeze(1).expand(made.shape[0], 3, *made.shape[1:]).tanh() if is_spread else made * 2

    return Lookup(whole, [numbers(*shape), *at])


def random_reading(draw: random.Random, shape: Sequence[int]) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
    """One way to read a table of ``shape``, and where: (table, *positions) → what was read."""
    axis = draw.randrange(len(shape))
    size, after = shape[axis], shape[min(axis + 1, len(shape) - 1)]
    whole = (slice(None),) * axis
    ways = ["list", "grid", "select", "gather", "rows", *(["pairs", "crossed"] if axis + 1 < len(shape) else [])]
    match draw.choice(ways):
        case "list":
            return lambda t, i: t[(*whole, i)], [positions(size, draw.choice((1, 2, 9, 20)))]
        case "grid":
            return lambda t, i: t[(*whole, i)].transpose(axis, axis + 1), [positions(size, draw.choice((4, 17)), 3)]
        case "pairs":
            return lambda t, i, j: t[(*whole, i, j)], [positions(size, 18), positions(after, 18)]
        case "crossed":
            return lambda t, i, j: t[(*whole, i, j)], [positions(size, 5, 1), positions(after, 1, 4)]
        case "select":
            return lambda t, i: t.index_select(axis, i), [positions(size, 19) % size]
        case "gather":
            reach = [6 if place == axis else length for place, length in enumerate(shape)]
            return lambda t, i: t.gather(axis, i), [positions(size, *reach) % size]
        case _:
            where = [draw.choice((1, 4, 13)) for _ in range(draw.randint(1, 3))]
            padding = draw.choice((None, 0))
            return lambda t, i: F.embedding(i, t.flatten(1), padding_idx=padding), [
                positions(shape[0], *where) % shape[0]
            ]


LOOKUPS = {
    "heads by list": Lookup(heads_by_list, [numbers(24, 96), torch.tensor([-2]), torch.tensor([-1])]),
    "channels last": Lookup(
        channels_last_embedding, [numbers(7, 5), positions(7, 5, 1, 4, 13) % 7, numbers(5, 5, 1, 4, 13)]
    ),
    "long": Lookup(lambda t, i: F.embedding(i, t) * 2, [numbers(50, 96), positions(50, 700) % 50]),
    "long list": Lookup(lambda t, i: t[:, i].transpose(0, 1), [numbers(96, 50), positions(50, 900)]),
    **{f"seed {seed}": random_lookup(seed) for seed in range(SEEDS)},
}  # fmt: skip
#: One of each form, and two random ones.
NAMES = others_long(LOOKUPS, {"heads by list", "channels last", "long list", "seed 0", "seed 13"})


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> dict[str, NativeKernel]:
    codes = {}
    wanted = {name: LOOKUPS[name] for (name,) in sorted(chosen_values(request, "name"))}
    digests = {name: hashlib.sha256(f"lookup {name}".encode()).hexdigest() for name in wanted}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # inductor's own, as it is imported
        for name, lookup in wanted.items():
            with without_onednn():
                module = trace_aten(lookup.with_gradient, lookup.tensors())
            codes[digests[name]] = section_namespace("section", *write_code(module, lookup.tensors(), {}, threads=2))
        libraries = keep(codes, {}, codes.__getitem__)
    return {
        name: load_native(digest, libraries[digest], len(LOOKUPS[name].inputs) + 1, 2)
        for name, digest in digests.items()
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("threads", others_long([1, 2], {2}))
def test_what_is_read_and_the_gradient_are_torchs(kernels: dict[str, NativeKernel], name: str, threads: int) -> None:
    lookup = LOOKUPS[name]
    torch.set_num_threads(threads)
    made = kernels[name](lookup.tensors(), {})
    gold = lookup.with_gradient(*lookup.tensors())
    for ours, theirs in zip(made, gold, strict=True):
        assert ours.shape == theirs.shape
        assert (ours - theirs).abs().max() <= TOLERANCE * theirs.abs().max()


@pytest.mark.parametrize("name", NAMES)
def test_bits_are_those_of_one_thread(kernels: dict[str, NativeKernel], name: str) -> None:
    """What several threads add up in whatever order they come by has other last bits in each run."""
    made = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        made.append(kernels[name](LOOKUPS[name].tensors(), {}))
    assert all(torch.equal(one, two) for one, two in zip(*made, strict=True))
