"""Collectives of a group of ranks, and the choice of their data plane.

All planes make the same bits: values are added in rank order, in f32 for bf16 and f16, and rounded once. Source:
runtime reference 9 for the primitives. The fixed order is ours, so that results do not depend on the plane.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch

from rdukit.errors import InvalidArgument
from rdukit_runtime.collectives.membership import GroupRanks, all_ranks
from rdukit_runtime.collectives.stragglers import Stragglers
from rdukit_runtime.collectives.sums import Reduction, check_reduction

#: More shapes than these are announced as a checksum.
_SHAPES_SHOWN: Final = 4
#: Bytes of a text that ranks exchange.
TEXT_BYTES: Final = 512


class Collectives(ABC):
    """Collectives of a group; each is called by all its ranks, in the same order.

    Tensors are on the host, of any layout. Every call raises PeerLost if a rank died, left or did not answer, and
    InvalidArgument, on every rank, if the ranks made different calls.
    """

    def __init__(self, rank: int, size: int, ranks: GroupRanks | None = None) -> None:
        self.rank, self.size = rank, size
        #: Numbers of the ranks in errors.
        self.ranks = ranks or all_ranks(size)
        #: Lateness of ranks at collectives; all zeros between machines, whose clocks differ.
        self.stragglers = Stragglers(self.ranks.numbers)

    def allocate(self, count_bytes: int) -> torch.Tensor:
        """Return zeroed bytes for this rank; a collective with equal sizes on every rank.

        If the ranks share memory, ``all_reduce`` of a contiguous view of it into itself copies nothing. All ranks then
        use the same view.
        """
        return torch.zeros(count_bytes, dtype=torch.uint8)

    def all_reduce(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], reduction: Reduction = Reduction.SUM,
        label: str = "",
    ) -> None:  # fmt: skip
        """Reduce each input over the ranks into the output at its place, which may be the input itself.

        Args:
            label: names the data in errors; equal on every rank.
        """
        by_type: dict[torch.dtype, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for pair in zip(inputs, outputs, strict=True):
            by_type.setdefault(pair[0].dtype, []).append(pair)
        for dtype, pairs in by_type.items():
            check_reduction(dtype, reduction)
            read = [tensor.detach().contiguous() for tensor, _ in pairs]
            with writable([tensor for _, tensor in pairs]) as written:
                of = f" of {label}" if label else ""
                self._all_reduce(read, written, reduction, f"all_reduce {reduction} {describe(read)}{of}")

    def reduce_scatter(
        self, given: torch.Tensor, output: torch.Tensor, reduction: Reduction = Reduction.SUM
    ) -> None:  # fmt: skip
        """Reduce ``given``, one part for each rank, and leave this rank's part in ``output``."""
        check_reduction(given.dtype, reduction)
        _check_parts(given, output, self.size, "reduce_scatter reads")
        with writable([output]) as (written,):
            read = given.detach().contiguous()
            self._reduce_scatter(read, written, reduction, f"reduce_scatter {reduction} {describe([read])}")

    def all_gather(self, given: torch.Tensor, output: torch.Tensor) -> None:
        """Collect every rank's ``given`` in ``output``, by rank."""
        _check_parts(output, given, self.size, "all_gather makes")
        with writable([output]) as (written,):
            read = given.detach().contiguous()
            self._all_gather(read, written, f"all_gather {describe([read])}")

    def broadcast(self, tensors: Sequence[torch.Tensor], root: int = 0) -> None:
        """Overwrite the tensors with those of rank ``root``, bit for bit."""
        if not 0 <= root < self.size:
            raise InvalidArgument(f"there is no rank {root} to send; expected a rank from 0 to {self.size - 1}")
        text = f"broadcast from rank {self.ranks.numbers[root]} {describe(tensors)}"
        with writable(tensors, is_read=True) as written:
            self._broadcast([row.view(-1).view(torch.uint8) for row in written if row.numel()], root, text)

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Send a tensor to rank ``to``; returns when it has been received."""
        self._check_peer(to)
        self._send(tensor.detach().contiguous(), to, describe([tensor]))

    def recv(self, tensor: torch.Tensor, sender: int) -> None:
        """Overwrite a tensor with the data that rank ``sender`` sends."""
        self._check_peer(sender)
        with writable([tensor]) as (written,):
            self._recv(written, sender, describe([tensor]))

    def exchange(self, text: str) -> list[str]:
        """Return each rank's text, by rank; texts are cut after 512 bytes."""
        texts = torch.empty(self.size, TEXT_BYTES, dtype=torch.uint8)
        self.all_gather(bytes_of(text), texts)
        return [text_of(row) for row in texts]

    def note(self, doing: str) -> None:  # noqa: B027  other machines do not see it
        """Record this rank's activity between collectives, for errors of the others on this machine."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until every rank is here."""

    def close(self) -> None:  # noqa: B027  most planes hold nothing
        """Leave the group."""

    @abstractmethod
    def _all_reduce(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], reduction: Reduction, text: str
    ) -> None: ...

    @abstractmethod
    def _reduce_scatter(self, given: torch.Tensor, output: torch.Tensor, reduction: Reduction, text: str) -> None: ...

    @abstractmethod
    def _all_gather(self, given: torch.Tensor, output: torch.Tensor, text: str) -> None: ...

    @abstractmethod
    def _broadcast(self, rows: Sequence[torch.Tensor], root: int, text: str) -> None: ...

    @abstractmethod
    def _send(self, tensor: torch.Tensor, to: int, text: str) -> None: ...

    @abstractmethod
    def _recv(self, tensor: torch.Tensor, sender: int, text: str) -> None: ...

    def _check_peer(self, peer: int) -> None:
        if not 0 <= peer < self.size or peer == self.rank:
            raise InvalidArgument(
                f"rank {self.rank} of {self.size} has no peer {peer}; expected another rank from 0 to {self.size - 1}"
            )


def compare_calls(texts: Sequence[str], ranks: GroupRanks) -> None:
    """Check that all ranks announced the same call; ``texts`` are theirs, by their place in the group (pure).

    Raises:
        InvalidArgument: a rank announced another one.
    """
    other = next((rank for rank, text in enumerate(texts) if text != texts[0]), None)
    if other is not None:
        raise InvalidArgument(
            f"ranks call different collectives: {ranks.name([0])} calls {texts[0]}, and rank {ranks.numbers[other]} "
            f"calls {texts[other]}; call the same collective on every rank, with equal shapes and types"
        )


def describe(tensors: Sequence[torch.Tensor]) -> str:
    """Return types and shapes of tensors, as the ranks compare them."""
    shapes = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors]
    if len(shapes) <= _SHAPES_SHOWN:
        return ", ".join(shapes)
    total = sum(tensor.numel() for tensor in tensors)
    check = zlib.crc32(" ".join(shapes).encode())
    return f"{shapes[0]} and {len(shapes) - 1} more, {total} elements (shapes {check:08x})"


def bytes_of(text: str) -> torch.Tensor:
    """Return a text as ``TEXT_BYTES`` bytes."""
    return torch.frombuffer(bytearray(text.encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")), dtype=torch.uint8)


def text_of(row: torch.Tensor) -> str:
    """Return the text from the bytes of ``bytes_of``."""
    return bytes(row.tolist()).rstrip(b"\0").decode(errors="replace")


@contextmanager
def writable(tensors: Sequence[torch.Tensor], is_read: bool = False) -> Iterator[list[torch.Tensor]]:
    """Lend contiguous memory for each tensor; other tensors are copied, and written back afterwards."""
    lent = [
        tensor if tensor.is_contiguous() else tensor.contiguous() if is_read else torch.empty_like(
            tensor, memory_format=torch.contiguous_format
        )
        for tensor in tensors
    ]  # fmt: skip
    yield [tensor.detach() for tensor in lent]
    for tensor, memory in zip(tensors, lent, strict=True):
        if memory is not tensor:
            tensor.detach().copy_(memory)


def _check_parts(whole: torch.Tensor, part: torch.Tensor, size: int, verb: str) -> None:
    if whole.numel() != part.numel() * size or whole.dtype != part.dtype:
        raise InvalidArgument(
            f"{verb} {describe([whole])} with {describe([part])} for each of {size} ranks; expected {size} times as "
            "many elements of the same type"
        )
