"""Python's control flow and shapes over integer buffers and masks that forward does not change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from rdukit.errors import RdukitError, TraceError
from sambaflow import samba
from sambaflow.samba import utils
from support import shows
from support.programs import compare_step, compile_model, load_model

pytestmark = shows("pytorch")


class PaddedConvolution(nn.Module):
    """EnCodec's: how much is padded follows from two buffers []."""

    def __init__(self, is_persistent: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 4, 2)
        self.register_buffer("stride", torch.tensor(2), persistent=is_persistent)
        self.register_buffer("total", torch.tensor(2), persistent=is_persistent)

    def forward(self, x: torch.Tensor) -> Any:
        frames = torch.ceil(x.shape[-1] / self.stride + 0.25).to(torch.int64)
        extra = frames * self.stride - x.shape[-1]
        left = self.total - self.total // 2
        if max(left, extra) > 0:
            x = F.pad(x, (left, self.total // 2 + extra))
        return self.conv(x)


class Counts(nn.Module):
    """Doubles from its third call on."""

    def __init__(self, is_persistent: bool) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(0), persistent=is_persistent)

    def forward(self, x: torch.Tensor) -> Any:
        self.calls.add_(1)
        return x * 2 if self.calls > 2 else x + 0


@pytest.mark.parametrize("is_persistent", [False, True])
def test_a_padding_that_is_kept_in_buffers_is_a_number(is_persistent: bool, tmp_path: Path) -> None:
    net = PaddedConvolution(is_persistent)
    x = samba.randn(1, 2, 9, name="x")
    (out,) = load_model(net, x, tmp_path, precision="f32").run()
    expected = net(x.data)
    assert out.shape == expected.shape
    assert torch.allclose(out.data, expected, atol=1e-6)


def test_a_buffer_that_forward_changes_is_no_number(tmp_path: Path) -> None:
    for is_persistent in (False, True):
        with pytest.raises(TraceError, match=r"cannot depend on state"):
            load_model(Counts(is_persistent), samba.randn(1, 2, 9, name="x"), tmp_path, precision="f32")


def sequences(net: Any, y: torch.Tensor) -> Any:
    packed = pack_padded_sequence(y.view(2, 2, 4), net.lengths, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(net.layer(packed)[0], batch_first=True)[0]


def doubled(net: Any, y: torch.Tensor) -> Any:
    y = y * 1
    y[net.mask] = y[net.mask] * torch.arange(3.0)[:, None]
    return y


READS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "rows": lambda net, y: y[net.mask],
    "rows-of-a-computed-mask": lambda net, y: y[~net.mask | (net.counts > 2)].sum(0),
    "positions": lambda net, y: y[net.mask.nonzero().squeeze(1)],
    "rows-and-columns": lambda net, y: y[:, net.mask],
    "chosen": lambda net, y: torch.masked_select(y, net.mask),
    "written": doubled,
    "repeated": lambda net, y: y.repeat_interleave(net.counts, 0),
    "counted": lambda net, y: y * torch.bincount(net.counts).float(),
    "length": lambda net, y: y[: int(net.lengths.max())],
    "lengths": lambda net, y: torch.cat([p.mean(0) for p in y.split(net.lengths.tolist())]),
    "sequences": sequences,
}


class Reading(nn.Module):
    """``function`` of a layer's rows [4, 4], by a mask [4] and numbers that a checkpoint holds."""

    def __init__(self, function: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.layer = nn.Linear(4, 4), nn.GRU(4, 4, batch_first=True)
        self.register_buffer("mask", torch.tensor([True, False, True, True]))
        self.register_buffer("counts", torch.tensor([1, 2, 0, 3]))
        self.register_buffer("lengths", torch.tensor([2, 2]))
        self._function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self._function(self, self.linear(x)) + sum(p.sum() for p in self.layer.parameters())


@pytest.mark.parametrize("case", READS)
def test_masks_and_lengths_of_a_checkpoint_are_known(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    compare_step(Reading(READS[case]), samba.randn(4, 4, name="x"), tmp_path)


def test_another_checkpoint_after_the_compile_is_refused(tmp_path: Path) -> None:
    net = Reading(READS["rows"])
    loaded = load_model(net, samba.randn(4, 4, name="x"), tmp_path, precision="f32")
    loaded.run()
    other = Reading(READS["rows"])
    other.mask[1] = True
    net.load_state_dict(other.state_dict())
    samba.session.to_rdu(net)
    with pytest.raises(RdukitError, match=r"[Cc]ompile again"):
        loaded.run()


def test_a_pef_takes_another_mask_that_chooses_as_many_rows(tmp_path: Path) -> None:
    x = samba.randn(4, 4, name="x")
    pef = compile_model(Reading(READS["rows"]), x, None, tmp_path, precision="f32", inference=True)
    net = Reading(READS["rows"])
    net.mask.copy_(torch.tensor([True, True, True, False]))
    expected = net(x.data)
    samba.from_torch_model_(net)
    utils.trace_graph(net, x, None, pef=pef)
    (made,) = samba.session.run(input_tensors=x, output_tensors=net.output_tensors, section_types=["fwd"])
    torch.testing.assert_close(samba.to_torch(made), expected, rtol=1e-5, atol=1e-5)
    net.mask.fill_(True)
    with pytest.raises(RdukitError):
        utils.trace_graph(net, x, None, pef=pef)


def test_a_mask_that_chooses_what_one_number_replaces_is_not_looked_at(tmp_path: Path) -> None:
    class Covered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("mask", torch.tensor([True, False, True, True]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x) * 2
            y[self.mask] = 0.5
            self.mask = ~self.mask
            return y

    compare_step(Covered(), samba.randn(4, 4, name="x"), tmp_path, steps=3)
