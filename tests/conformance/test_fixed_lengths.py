"""Packed sequences and CTC with lengths that depend on no input: numbers in the program, or tensors of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

from rdukit.errors import TraceError
from sambaflow import samba
from support import first_short, shows
from support.programs import compare_step, compile_model

pytestmark = shows("pytorch", "precision", "o0", "o1", "o3")


class Packed(nn.Module):
    """Packs x [4, 6, 3], runs ``layer``, and returns what ``show`` makes of its result."""

    def __init__(self, layer: nn.Module, lengths: Any, show: Callable[..., Any], is_sorted: bool = False) -> None:
        super().__init__()
        self.layer, self._lengths, self._show, self._is_sorted = layer, lengths, show, is_sorted

    def forward(self, x: torch.Tensor) -> Any:
        lengths = self._lengths() if callable(self._lengths) else self._lengths
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=self._is_sorted)
        return self._show(*self.layer(packed))


def padded(packed: PackedSequence, state: Any) -> Any:
    y, lengths = pad_packed_sequence(packed, batch_first=True, padding_value=0.5)
    return y, lengths


def states(packed: PackedSequence, state: Any) -> Any:
    return state


def longer(packed: PackedSequence, state: Any) -> Any:
    return pad_packed_sequence(packed, total_length=8)[0]


def rows_only(packed: PackedSequence, state: Any) -> Any:
    dropped = PackedSequence(packed.data * 2, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
    return pad_packed_sequence(dropped, batch_first=True)[0].sum(1)


CASES: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: Packed(nn.LSTM(3, 5, batch_first=True), [6, 4, 4, 1], padded, True),
    "lstm-states": lambda: Packed(nn.LSTM(3, 5, 2, batch_first=True, bidirectional=True), [2, 6, 3, 5], states),
    "lstm-projected": lambda: Packed(nn.LSTM(3, 5, batch_first=True, proj_size=2), [2, 6, 3, 5], padded),
    "gru-two-ways": lambda: Packed(nn.GRU(3, 5, 2, batch_first=True, bidirectional=True), [2, 6, 3, 5], padded),
    "gru-without-bias": lambda: Packed(nn.GRU(3, 5, bias=False), [2, 6, 3, 5], states),
    "rnn-relu": lambda: Packed(nn.RNN(3, 5, nonlinearity="relu"), [1, 1, 2, 5], longer),
    "rnn-tanh": lambda: Packed(nn.RNN(3, 5, bidirectional=True), [6, 6, 6, 6], longer),
    "tensor": lambda: Packed(nn.LSTM(3, 5), lambda: torch.tensor([2, 6, 3, 5]), padded),
    "computed": lambda: Packed(nn.LSTM(3, 5), lambda: torch.arange(4) + 2, rows_only),
}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "mode"),
    first_short(
        [
            (case, mode)
            for case in sorted(CASES, key="lstm".__ne__)
            for mode in ("o3", *(("o0", "o1") * (case == "lstm")))
        ],
        5,
    ),
)
def test_packed_sequences_of_fixed_lengths_compute_and_train_as_in_torch(case: str, mode: str, tmp_path: Path) -> None:
    net = CASES[case]()
    compare_step(net, samba.randn(4, 6, 3, name="x").requires_grad_(), tmp_path, optim_level=mode, tolerance=2e-5)


def test_a_pack_of_sequences_that_forward_cuts_itself(tmp_path: Path) -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(3, 4)

        def forward(self, x: torch.Tensor) -> Any:
            packed = pack_sequence([x[0, :5], x[1, :2], x[2, :4]], enforce_sorted=False)
            return pad_packed_sequence(self.layer(packed)[0])[0]

    compare_step(Cut(), samba.randn(4, 6, 3, name="x"), tmp_path, tolerance=2e-5)


def test_lengths_that_are_data_are_refused_with_what_to_do(tmp_path: Path) -> None:
    class ByData(nn.Module):
        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
            return pack_padded_sequence(x, lengths, batch_first=True).data

    inputs = (samba.randn(4, 6, 3, name="x"), samba.from_torch_tensor(torch.tensor([6, 4, 2, 1]), name="lengths"))
    with pytest.raises(TraceError, match=r"lengths.*Python numbers.*mask"):
        compile_model(ByData(), inputs, None, tmp_path)


def test_a_traced_tensor_is_taken_as_it_is_and_not_by_its_memory(tmp_path: Path) -> None:
    class Taken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return torch.as_tensor(self.lin(x)) + torch.asarray(x) * torch.as_tensor(x, dtype=torch.float64)

    compare_step(Taken(), samba.randn(4, 6, 3, name="x"), tmp_path)


def test_lengths_out_of_range_are_refused_with_the_legal_ones(tmp_path: Path) -> None:
    net = Packed(nn.GRU(3, 4), [7, 1, 1, 1], padded)
    with pytest.raises(TraceError, match=r"lengths \[7, 1, 1, 1\] are not valid.*from 1 to 6"):
        compile_model(net, samba.randn(4, 6, 3, name="x"), None, tmp_path)


# -- CTC ---------------------------------------------------------------------------------------------------------------


class Transcribed(nn.Module):
    """Labels [3, 4] are a buffer; x [7, 3, 5] are features."""

    def __init__(self, loss: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.lin = nn.Linear(5, 6)
        self.register_buffer("labels", torch.tensor([[1, 2, 2, 5], [3, 3, 0, 0], [4, 1, 5, 0]]))
        self._loss = loss

    def forward(self, x: torch.Tensor) -> Any:
        return self._loss(self.lin(x).log_softmax(-1), self.labels)


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "numbers": lambda lp, y: F.ctc_loss(lp, y, (7, 7, 7), (4, 2, 3)),
    "unequal": lambda lp, y: F.ctc_loss(lp, y, (7, 5, 6), (4, 2, 3), reduction="sum"),
    "per-sample": lambda lp, y: F.ctc_loss(lp, y, (7, 5, 6), (3, 2, 3), reduction="none"),
    "tensors": lambda lp, y: F.ctc_loss(lp, y, torch.full((3,), 7), torch.tensor([4, 2, 3])),
    "one-row": lambda lp, y: F.ctc_loss(lp, torch.cat([y[0, :4], y[1, :2], y[2, :3]]), (7, 7, 6), (4, 2, 3)),
    "other-blank": lambda lp, y: F.ctc_loss(lp, y, (7, 7, 7), (3, 2, 2), blank=5),
    "module": lambda lp, y: nn.CTCLoss(zero_infinity=True)(lp, y, (7, 3, 6), (4, 2, 3)),
    "one-sample": lambda lp, y: F.ctc_loss(lp[:, 0], y[0], (7,), (4,)),
    "impossible": lambda lp, y: F.ctc_loss(lp, y, (7, 2, 7), (4, 2, 3), zero_infinity=True),
}


@pytest.mark.parametrize(
    ("case", "mode"), [(case, mode) for case in LOSSES for mode in ("o3", *(("o0", "o1") if case == "unequal" else ()))]
)
def test_ctc_of_fixed_lengths_computes_and_trains_as_in_torch(case: str, mode: str, tmp_path: Path) -> None:
    x = samba.randn(7, 3, 5, name="x").requires_grad_()
    compare_step(Transcribed(LOSSES[case]), x, tmp_path, optim_level=mode, tolerance=2e-5)


def test_ctc_in_bf16_is_summed_in_f32(tmp_path: Path) -> None:
    x = samba.randn(7, 3, 5, name="x")
    compare_step(Transcribed(LOSSES["numbers"]), x, tmp_path, precision="bf16", tolerance=3e-2)


@pytest.mark.parametrize("mode", ["o0", "o3"])
@pytest.mark.parametrize(("repeats", "dim"), [([2, 0, 3], 1), ([2], 0), ([1] * 12, None)])
def test_rows_are_repeated_as_often_as_the_program_says(
    repeats: list[int], dim: int | None, mode: str, tmp_path: Path
) -> None:
    class Repeating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lin(x).repeat_interleave(torch.tensor(repeats), dim).tanh()

    compare_step(Repeating(), samba.randn(4, 3, name="x"), tmp_path, optim_level=mode)
