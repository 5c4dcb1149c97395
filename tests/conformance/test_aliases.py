"""Functions that give their argument itself, or a view of it: what is written to one is seen through the other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rdukit.errors import UnsupportedOperator
from sambaflow import samba
from support import shows
from support.programs import compare_step

pytestmark = shows("pytorch", "o0", "o1", "o3")

ROWS, WIDTH = 4, 6
WEIGHT = torch.linspace(-1, 1, 20).reshape(5, 4)

#: What torch gives for some or all of these is x itself, or shows x's memory.
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout-evaluated": lambda x: F.dropout(x, 0.3, training=False),
    "dropout-of-nothing": lambda x: F.dropout(x, 0.0),
    "dropout1d-evaluated": lambda x: F.dropout1d(x, 0.3, training=False),
    "alpha-dropout-evaluated": lambda x: F.alpha_dropout(x, 0.3, training=False),
    "feature-alpha-dropout-evaluated": lambda x: F.feature_alpha_dropout(x, 0.3, training=False),
    "dropout-in-place-evaluated": lambda x: F.dropout(x, 0.3, training=False, inplace=True),
    "native-dropout-evaluated": lambda x: torch.native_dropout(x, 0.3, False)[0],
    "dropout-module": nn.Dropout(0.3).eval(),
    "identity": nn.Identity(),
    "contiguous": lambda x: x.contiguous(),
    "contiguous-of-a-transposed": lambda x: x.t().contiguous(),
    "to-dtype": lambda x: x.to(torch.float32),
    "to-copy": lambda x: x.to(torch.float32, copy=True),
    "to-device": lambda x: x.to("cpu"),
    "to-other": lambda x: x.to(x),
    "float": lambda x: x.float(),
    "type": lambda x: x.type(torch.float32),
    "type-as": lambda x: x.type_as(x),
    "cpu": lambda x: x.cpu(),
    "positive": lambda x: +x,
    "reshape": lambda x: x.reshape(WIDTH, ROWS),
    "reshape-to-itself": lambda x: x.reshape(ROWS, WIDTH),
    "reshape-of-a-transposed": lambda x: x.t().reshape(ROWS, WIDTH),
    "flatten": lambda x: x.flatten(),
    "flatten-of-one": lambda x: x[0].flatten(),
    "ravel": lambda x: x.ravel(),
    "view-as": lambda x: x.view_as(x),
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "squeeze-of-nothing": lambda x: x.squeeze(),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "expand-to-itself": lambda x: x.expand(ROWS, WIDTH),
    "expand-as": lambda x: x.expand_as(x),
    "broadcast-to": lambda x: torch.broadcast_to(x, (ROWS, WIDTH)),
    "broadcast-tensors": lambda x: torch.broadcast_tensors(x, torch.zeros(1))[0],
    "atleast": torch.atleast_2d,
    "narrow-to-all": lambda x: x.narrow(0, 0, ROWS),
    "index-of-all": lambda x: x[...],
    "index-none": lambda x: x[None],
    "select": lambda x: x[1],
    "slices": lambda x: x[1:, ::2],
    "index-list": lambda x: x[[0, 1]],
    "chunk-of-one": lambda x: x.chunk(1)[0],
    "chunk": lambda x: x.chunk(2, 1)[1],
    "split": lambda x: x.split([1, 3])[1],
    "unbind": lambda x: x.unbind(1)[-1],
    "tensor-split": lambda x: x.tensor_split(3)[1],
    "unsafe-chunk": lambda x: x.unsafe_chunk(2)[0],
    "hsplit": lambda x: x.hsplit(2)[0],
    "transpose": lambda x: x.t(),
    "movedim": lambda x: x.movedim(0, 1),
    "permute": lambda x: x.permute(0, 1),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "adjoint": lambda x: x.mH,
    "turned": lambda x: x.T,
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "as-strided": lambda x: x.as_strided((3,), (2,), 1),
    "real": lambda x: x.real,
    "conj": lambda x: x.conj(),
    "resolve-conj": lambda x: x.resolve_conj(),
    "detach": lambda x: x.detach(),
    "nan-to-num": lambda x: x.nan_to_num(),
    "clone": lambda x: x.clone(),
    "clamp": lambda x: x.clamp(-100, 100),
    "relu": F.relu,
    "roll-by-nothing": lambda x: x.roll(0, 0),
    "flip-of-nothing": lambda x: x.flip([]),
    "pad-by-nothing": lambda x: F.pad(x, (0, 0)),
    "repeat-once": lambda x: x.repeat(1, 1),
    "tile-once": lambda x: x.tile(1),
    "repeat-interleave-once": lambda x: x.repeat_interleave(1, 0),
    "cat-of-one": lambda x: torch.cat([x]),
    "sum-of-no-axis": lambda x: x[:, :1].sum(1),
    "interpolate-to-itself": lambda x: F.interpolate(x[None], size=WIDTH)[0],
    "avg-pool-of-one": lambda x: F.avg_pool1d(x, 1),
    "adaptive-pool-to-itself": lambda x: F.adaptive_avg_pool1d(x, WIDTH),
    "max-pool-of-one": lambda x: F.max_pool1d(x, 1),
    "renorm": lambda x: x.renorm(2, 0, 1000.0),
    "where": lambda x: torch.where(torch.ones(ROWS, WIDTH, dtype=torch.bool), x, x),
    "maximum": lambda x: torch.maximum(x, x),
    "channels-last": lambda x: x[None, None].to(memory_format=torch.channels_last),
    "matrix-power": lambda x: torch.linalg.matrix_power(x[:, :ROWS], 1),
    "chain-matmul-of-one": lambda x: torch.linalg.multi_dot([x, torch.eye(WIDTH)]),
    "meshgrid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[0],
    "einsum-of-one": lambda x: torch.einsum("ij->ji", x),
    "vmap": torch.func.vmap(lambda row: row[1:]),
}  # fmt: skip


def _turned_norm(x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x.reshape(2, 3, 4).transpose(1, 2), None, None, training=True)


class Shown(nn.Module):
    """What is written to may be a view of what is read: that depends on how torch lays a result out."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.arange(1.0, ROWS * WIDTH + 1).reshape(ROWS, WIDTH) / 8)
        self._function = function

    def forward(self, x: torch.Tensor) -> Any:
        made = self._function(x * self.scale)
        made.reshape(-1).add_(3.0)
        made.transpose(1, 2).flatten(1).add_(0.5)
        return made * 2 + self.scale.sum()


class Written(nn.Module):
    """Two tensors that may be one; forward writes to the first or to the second, and reads both."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], first: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.arange(1.0, ROWS * WIDTH + 1).reshape(ROWS, WIDTH) / 8)
        self._function = function
        self._first = first

    def forward(self, x: torch.Tensor) -> Any:
        made = x * self.scale
        given = self._function(made)
        (made if self._first else given).mul_(-3.0)
        return made * 2, given * 5


def is_legal(case: str, first: bool) -> bool:
    """Whether torch takes the write: it refuses some of what an operator needs for its gradient."""
    try:
        torch.autograd.backward([made.sum() for made in Written(FUNCTIONS[case], first)(torch.ones(ROWS, WIDTH))])
    except RuntimeError:
        return False
    return True


CASES = [(case, first) for case in FUNCTIONS for first in (True, False) if is_legal(case, first)]
#: What is refused: results that are views by chance, of one of several operands.
REFUSED = frozenset({"einsum-of-one", "meshgrid", "unsafe-chunk"})


@pytest.mark.parametrize(("case", "first"), [c for c in CASES if c[0] not in REFUSED])
def test_a_write_is_seen_where_torch_shows_it(case: str, first: bool, tmp_path: Path) -> None:
    compare_step(Written(FUNCTIONS[case], first), samba.randn(ROWS, WIDTH, name="x"), tmp_path)


@pytest.mark.parametrize(("case", "first"), [c for c in CASES if c[0] in REFUSED])
def test_a_write_to_what_is_a_view_by_chance_is_refused(case: str, first: bool, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperator, match=r"overwrites memory shared with '.*'"):
        compare_step(Written(FUNCTIONS[case], first), samba.randn(ROWS, WIDTH, name="x"), tmp_path)


class Places(nn.Module):
    """``as_strided`` of what is computed, in one of its places."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.arange(1.0, ROWS * WIDTH + 1).reshape(ROWS, WIDTH) / 8)
        self._function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self._function(x * self.scale) * 2


def written_through_places(x: torch.Tensor) -> torch.Tensor:
    x.t().as_strided((2, 3), (2, 5), 1).mul_(-3)
    return x


PLACES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of-a-transposed": lambda x: x.t().as_strided((3,), (1,)),
    "of-a-part": lambda x: x[1:].as_strided((3, 2), (1, 2)),
    "beside-a-detached-part": lambda x: x.detach()[1:].as_strided((3,), (1,), 0) + x[0, 0],
    "of-a-copy-of-a-transposed": lambda x: x.t().sigmoid().as_strided((5, 2), (1, 2)),
    "of-channels-last": lambda x: x.reshape(1, 2, 3, 4).to(memory_format=torch.channels_last).as_strided((5,), (2,), 3),
    "of-linear": lambda x: F.linear(x.reshape(2, 3, 4).transpose(0, 1), WEIGHT, WEIGHT[:, 0]).as_strided(
        (4, 5), (3, 2), 1
    ),
    "of-linear-without-bias": lambda x: F.linear(x.reshape(2, 3, 4).permute(2, 0, 1), WEIGHT[:, :3]).as_strided(
        (9,), (3,)
    ),
    "of-mm": lambda x: torch.mm(x.reshape(4, 6).t(), WEIGHT[:4, :4]).as_strided((7,), (3,), 2),
    "of-padded": lambda x: F.pad(x.reshape(2, 3, 4).transpose(0, 1), (0, 0, 1, 1), value=-1).as_strided((5, 6), (7, 2)),
    "of-bmm": lambda x: torch.bmm(x.reshape(2, 3, 4).mT, x.reshape(3, 2, 4).transpose(0, 1)).as_strided((8,), (3,), 2),
    "of-what-overlaps": lambda x: x.as_strided((4, 3), (2, 1)),
    "in-place": lambda x: (x + 1).as_strided_((3, 4), (4, 1), 2),
    "scattered": lambda x: x.detach().as_strided_scatter(torch.ones(3), (3,), (2,), 1) + x,
    "written": written_through_places,
}


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
@pytest.mark.parametrize("case", PLACES)
def test_places_in_memory_are_those_of_torch_however_the_device_lays_values_out(
    case: str, mode: str, tmp_path: Path
) -> None:
    compare_step(Places(PLACES[case]), samba.randn(ROWS, WIDTH, name="x"), tmp_path, optim_level=mode)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[1:].as_strided((3,), (1,), 0),
        lambda x: x[:, 1:3].as_strided((3,), (1,)),
        lambda x: F.batch_norm(x.reshape(2, 3, 4).permute(2, 1, 0), None, None, training=True).as_strided((2,), (1,)),
    ],
    ids=["beside-a-part", "with-gaps", "of-what-torch-lays-out-itself"],
)  # fmt: skip
def test_places_that_are_not_known_or_whose_gradient_torch_loses_are_refused(function: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperator, match="as_strided reads"):
        compare_step(Places(function), samba.randn(ROWS, WIDTH, name="x"), tmp_path)


@pytest.mark.parametrize("scatter", ["select_scatter", "slice_scatter", "diagonal_scatter"])
def test_a_part_is_not_replaced_in_what_has_several_elements_in_one_place(scatter: str, tmp_path: Path) -> None:
    """Torch itself then overwrites elements beside the part."""
    part: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "select_scatter": lambda y: y.select_scatter(y[0] * 2, 0, -1),
        "slice_scatter": lambda y: y.slice_scatter(y[:1] * 2, 0, 3, 4),
        "diagonal_scatter": lambda y: y.diagonal_scatter(y.diagonal() * 2),
    }
    replace = part[scatter]
    compare_step(Places(lambda x: replace(x.expand(4, 6) + 0)), samba.randn(1, WIDTH, name="x"), tmp_path)
    compare_step(Places(lambda x: replace(x.expand(4, 6))), samba.randn(1, WIDTH, name="x"), tmp_path)
    compare_step(Places(lambda x: replace(x[:, ::2])), samba.randn(ROWS, WIDTH, name="x"), tmp_path)
    compare_step(Places(lambda x: replace(x.unfold(-1, 2, 1).contiguous())), samba.randn(WIDTH, name="x"), tmp_path)
    with pytest.raises(
        UnsupportedOperator, match=f"{scatter} replaces a part of .*several elements of which share memory"
    ):
        compare_step(Places(lambda x: replace(x.unfold(-1, 2, 1))), samba.randn(WIDTH, name="x"), tmp_path)


LAID_OUT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "norm": _turned_norm,
    "interpolate": lambda x: F.interpolate(x.reshape(2, 3, 4).transpose(1, 2), 3),
    "copysign": lambda x: torch.copysign(x.detach().reshape(2, 3, 4).transpose(1, 2), torch.tensor(-1.0)),
    "floor-divide": lambda x: x.detach().reshape(2, 3, 4).transpose(1, 2).floor_divide(0.5),
    "relu": lambda x: F.relu(x.reshape(2, 3, 4).transpose(1, 2)) * 1,
    "softmax": lambda x: x.reshape(2, 3, 4).transpose(1, 2).softmax(1) * 1,
}


@pytest.mark.parametrize("case", LAID_OUT)
def test_whether_a_reshape_is_a_view_is_decided_as_torch_lays_values_out(case: str, tmp_path: Path) -> None:
    compare_step(Shown(LAID_OUT[case]), samba.randn(ROWS, WIDTH, name="x"), tmp_path)
