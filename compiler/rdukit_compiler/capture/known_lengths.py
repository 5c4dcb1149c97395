"""Static operators for torch's operators on lengths: packed sequences, repeats, and the CTC loss.

torch's operators read the lengths. Lengths that depend on no input are numbers here, and packing selects rows. A
recurrent layer over packed rows is one call for each run of steps with the same number of sequences. Fake tensors
refuse the CTC loss, because lengths may be tensors; with numbers its shapes are known. The registry of fake
implementations is private to torch.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from rdukit.errors import UnsupportedOperator
from rdukit_compiler.capture.constant_folding import numbers_in
from rdukit_compiler.torch_private import register_op_impl, unset_fake_temporarily

aten = torch.ops.aten

#: Message for lengths that are not known.
DATA_DEPENDENT: Final = "lengths of sequences depend on data"

#: Returns a tensor with its values; None if they depend on data.
Find = Callable[[Any], torch.Tensor | None]


def pack(find: Find, x: torch.Tensor, lengths: Any, batch_first: bool) -> Any:
    """Compute ``aten._pack_padded_sequence``: return the rows of each step, for the sequences that are long enough, and
    their number in each step.
    """
    sizes = _numbers(find, lengths)
    steps = x.transpose(0, 1) if batch_first else x
    longest, batch = steps.shape[:2]
    if len(sizes) != batch or sorted(sizes, reverse=True) != sizes or not all(0 < size <= longest for size in sizes):
        raise RuntimeError(
            f"lengths {sizes} are not valid for {batch} sequences of {longest} steps; expected from 1 to {longest} for "
            "each, in decreasing order unless enforce_sorted=False"
        )
    rows = [t * batch + b for t in range(sizes[0]) for b in range(batch) if t < sizes[b]]
    data = steps.reshape(longest * batch, *steps.shape[2:])
    if rows != list(range(longest * batch)):
        data = data.index_select(0, _constant(rows))
    return data, _constant([sum(size > t for size in sizes) for t in range(sizes[0])])


def pad(
    find: Find, data: torch.Tensor, batch_sizes: Any, batch_first: bool, padding_value: float, total_length: int
) -> Any:
    """Compute ``aten._pad_packed_sequence``: rows in [T, B, …], ``padding_value`` where a sequence has ended."""
    sizes = _numbers(find, batch_sizes)
    steps, batch, offsets = max(total_length, len(sizes)), sizes[0], _offsets(sizes)
    rows = [
        offsets[t] + b if t < len(sizes) and b < sizes[t] else len(data) for t in range(steps) for b in range(batch)
    ]
    padding = data.new_full((1, *data.shape[1:]), padding_value)
    made = torch.cat([data, padding]).index_select(0, _constant(rows)).reshape(steps, batch, *data.shape[1:])
    lengths = _constant([sum(size > b for size in sizes) for b in range(batch)])
    return (made.transpose(0, 1) if batch_first else made), lengths


def lstm(find: Find, data: torch.Tensor, batch_sizes: Any, states: Sequence[torch.Tensor], *rest: Any) -> Any:
    """Compute ``aten.lstm.data``."""
    return _layers(find, aten.lstm.input, data, batch_sizes, list(states), *rest)


def _of_one_state(operator: Any) -> Callable[..., Any]:
    def form(find: Find, data: torch.Tensor, batch_sizes: Any, state: torch.Tensor, *rest: Any) -> Any:
        return _layers(find, operator, data, batch_sizes, [state], *rest)

    return form


def _layers(
    find: Find, operator: Any, data: torch.Tensor, batch_sizes: Any, states: list[torch.Tensor],
    params: Sequence[torch.Tensor], has_biases: bool, layers: int, rate: float, train: bool, is_bidirectional: bool,
) -> Any:  # fmt: skip
    """Run recurrent layers over packed rows [N, C]; states [layers * directions, B, H] each."""
    sizes = _numbers(find, batch_sizes)
    directions = 1 + is_bidirectional
    each = len(params) // (layers * directions)
    last: list[list[torch.Tensor]] = [[] for _ in states]
    for layer in range(layers):
        made = []
        for is_reversed in (False, True)[:directions]:
            place = layer * directions + is_reversed
            own = [list(params[place * each : (place + 1) * each]), has_biases]
            way, ends = _direction(operator, data, sizes, [state[place] for state in states], own, is_reversed)
            made.append(way)
            for found, end in zip(last, ends, strict=True):
                found.append(end)
        data = torch.cat(made, -1) if is_bidirectional else made[0]
        if rate and layer + 1 < layers:
            data = aten.dropout.default(data, rate, train)
    return (data, *(torch.stack(found) for found in last))


def _direction(
    operator: Any,
    data: torch.Tensor,
    sizes: Sequence[int],
    states: list[torch.Tensor],
    own: list[Any],
    is_reversed: bool,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Run one layer in one direction; states [B, H]. Backwards, each sequence is reversed within its own length."""
    offsets = _offsets(sizes)
    turned: torch.Tensor | None = None
    if is_reversed:
        lengths = [sum(size > b for size in sizes) for b in range(sizes[0])]
        turned = _constant([offsets[lengths[b] - 1 - t] + b for t, size in enumerate(sizes) for b in range(size)])
        data = data.index_select(0, turned)
    outputs: list[torch.Tensor] = []
    ended: list[list[torch.Tensor]] = [[] for _ in states]
    begin = 0
    while begin < len(sizes):
        count = sizes[begin]
        end = next((t for t in range(begin, len(sizes)) if sizes[t] != count), len(sizes))
        rows = data[offsets[begin] : offsets[begin] + (end - begin) * count]
        given = [state[:count].unsqueeze(0) for state in states]
        hidden = given if operator is aten.lstm.input else given[0]
        made = operator(rows.reshape(end - begin, count, -1), hidden, *own, 1, 0.0, False, False, False)
        outputs.append(made[0].reshape(-1, made[0].shape[-1]))
        states = [state[0] for state in made[1:]]
        going_on = sizes[end] if end < len(sizes) else 0
        for found, state in zip(ended, states, strict=True):
            found.insert(0, state[going_on:count])
        begin = end
    made_rows = torch.cat(outputs)
    return (made_rows if turned is None else made_rows.index_select(0, turned)), [torch.cat(found) for found in ended]


def repeat_rows(
    find: Find, x: torch.Tensor, repeats: Any, dim: int | None = None, *, output_size: int | None = None
) -> Any:  # fmt: skip
    """Compute ``aten.repeat_interleave.self_Tensor`` by selecting rows, unless ``repeats`` depends on data."""
    if find(repeats) is None:
        return NotImplemented
    x, dim = (x.flatten(), 0) if dim is None else (x, dim)
    counts = _numbers(find, repeats)
    counts = counts * x.shape[dim] if len(counts) == 1 else counts
    if len(counts) != x.shape[dim]:
        return NotImplemented  # torch raises the error
    return x.index_select(dim, _constant([row for row, count in enumerate(counts) for _ in range(count)]))


def _numbers(find: Find, tensor: Any) -> list[int]:
    """Return the numbers in a tensor of lengths.

    Raises:
        RuntimeError: they depend on data.
    """
    known = find(tensor)
    if known is None:
        raise RuntimeError(DATA_DEPENDENT)
    with unset_fake_temporarily(), disable_proxy_modes_tracing():
        return [int(number) for number in known.reshape(-1).tolist()]


def _constant(numbers: list[int]) -> torch.Tensor:
    with unset_fake_temporarily(), disable_proxy_modes_tracing():
        return torch.tensor(numbers, dtype=torch.int64)


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Return the row at which each step begins."""
    return [sum(sizes[:t]) for t in range(len(sizes))]


#: Operator → the form for known lengths; a form that returns ``NotImplemented`` leaves the call to torch.
FORMS: Final[dict[Any, Callable[..., Any]]] = {
    aten._pack_padded_sequence.default: pack,
    aten._pad_packed_sequence.default: pad,
    aten.lstm.data: lstm,
    aten.repeat_interleave.self_Tensor: repeat_rows,
    aten.gru.data: _of_one_state(aten.gru.input),
    aten.rnn_tanh.data: _of_one_state(aten.rnn_tanh.input),
    aten.rnn_relu.data: _of_one_state(aten.rnn_relu.input),
}


@register_op_impl(aten._ctc_loss.default)
def _made(
    mode: object, func: object, log_probs_TNC: torch.Tensor, targets: torch.Tensor, input_lengths: Sequence[int],
    target_lengths: Sequence[int], *rest: object, **options: object,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the loss of each sequence [N], and the gradient's operand [N, T, 2 L + 1] with the longest target L."""
    steps, count = log_probs_TNC.shape[:2]
    longest = max(target_lengths, default=0)
    return log_probs_TNC.new_empty(count), log_probs_TNC.new_empty(count, steps, 2 * longest + 1)


def with_known_lengths(
    func: Any, args: Sequence[Any], find: Callable[[Any], torch.Tensor | None]
) -> tuple[Any, tuple[Any, ...]]:
    """Return the call with numbers for lengths that are known tensors.

    Args:
        find: returns the values of a tensor, or None if they are not known.
    Raises:
        UnsupportedOperator: the lengths are not known.
    """
    if func is not aten.ctc_loss.Tensor:
        return func, tuple(args)
    lengths = [find(args[2]), find(args[3])]
    if any(each is None for each in lengths):
        raise UnsupportedOperator(
            "ctc_loss has lengths that depend on data; pass constant numbers, in lists or in tensors that forward "
            "creates"
        )
    return aten.ctc_loss.IntList, (*args[:2], *(numbers_in(each) for each in lengths if each is not None), *args[4:])
