"""Parameters of a PEF in memory of their own, so that a program switches between sets of them without a copy.

A set's memory is a mapped file: written once, in the device's dtypes, and mapped on each use.
"""

import ctypes
import mmap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit.pef.memory import parameter_layout
from rdukit.pef.model import Pef
from rdukit_runtime.engine.device import CPU
from rdukit_runtime.engine.native import fill_handles, take_handles
from rdukit_runtime.engine.quantized_weights import WEIGHT_FORMATS

#: Read all pages of a mapping ahead. Source: madvise(2); kernels before Linux 5.14 lack it.
_POPULATE_READ: Final = 22
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class ParameterSet:
    """Tensors by symbol over a mapped file, with the handles that native kernels take.

    Memory goes when the last tensor does: call ``close`` once no program uses the set.
    """

    def __init__(self, pef: Pef, file: Path, device: torch.device = CPU) -> None:
        """Map ``file``, which ``write_parameters`` wrote for the same PEF.

        Raises:
            InvalidArgument: the file has another size.
        """
        offsets, size = parameter_layout(pef)
        if file.stat().st_size != size:
            raise InvalidArgument(
                f"{file} has {file.stat().st_size} bytes, but the parameters of {pef.name} take {size}"
            )
        storage = _map(file, size, shared=False)
        self.size = size
        self._is_mapped = device.type == "cpu"
        self.addresses = range(storage.data_ptr(), storage.data_ptr() + size)
        self.tensors = _views(pef, offsets, storage)
        if device.type != "cpu":
            self.tensors = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        self._handles: Any = (ctypes.c_void_p * len(self.tensors))()
        fill_handles(self._handles, range(len(self.tensors)), list(self.tensors.values()))

    @property
    def handles(self) -> Sequence[int]:
        """Return a handle for each tensor, in their order; they stay the set's."""
        return self._handles  # type: ignore[no-any-return]

    def touch(self) -> None:
        """Load all pages into memory without the interpreter lock; if the kernel cannot, the first runs load them."""
        begin = self.addresses.start
        if not self._is_mapped:
            return
        if _madvise(begin, self.size, _POPULATE_READ):
            _madvise(begin, self.size, mmap.MADV_WILLNEED)

    def close(self) -> None:
        """Free the memory. Calling again does nothing."""
        if self.tensors:
            take_handles(self._handles, range(len(self.tensors)))
            self.tensors = {}


def write_parameters(pef: Pef, values: Iterable[tuple[str, torch.Tensor]], file: Path) -> None:
    """Write values by symbol to ``file`` for mapping: in the device's dtypes, quantised where the PEF says so.

    Symbols without a value are zero.

    Raises:
        InvalidArgument: a value has another shape than its symbol, or integers for a symbol of floats.
        PefMismatch: runs change a symbol with a value.
    """
    offsets, size = parameter_layout(pef)
    with file.open("wb") as stream:
        stream.truncate(size)
    tensors = _views(pef, offsets, _map(file, size, shared=True))
    for name, value in values:
        if name not in tensors:
            raise PefMismatch(f"{pef.name} changes {name!r} during runs, so its checkpoint cannot be exchanged")
        tensor, scale, dtype = tensors[name], pef.symbols[name].scale, pef.symbols[name].dtype
        is_quantised = bool(scale) and value.is_floating_point()
        is_alike = is_quantised or value.is_floating_point() is tensor.is_floating_point()
        shape = pef.host_shape(name) if is_quantised else tensor.shape
        if value.shape != shape or not is_alike:
            raise InvalidArgument(
                f"the checkpoint has {list(value.shape)} {value.dtype} for {name!r}, but {pef.name} was compiled for "
                f"{list(shape)} {tensor.dtype}"
            )
        if is_quantised:
            rows, scales = WEIGHT_FORMATS[dtype].quantize(value)
            tensors[scale].copy_(scales)
            tensor.copy_(rows)
        else:
            tensor.copy_(value)


def _map(file: Path, size: int, shared: bool) -> torch.UntypedStorage:
    storage = torch.UntypedStorage.from_file(str(file), shared=shared, nbytes=size)
    assert isinstance(storage, torch.UntypedStorage)
    return storage


def _views(pef: Pef, offsets: Mapping[str, int], storage: torch.UntypedStorage) -> dict[str, torch.Tensor]:
    views: dict[str, torch.Tensor] = {}
    for name, offset in offsets.items():
        symbol = pef.symbols[name]
        dtype: torch.dtype = getattr(torch, symbol.dtype)
        count = symbol.bytes // dtype.itemsize
        views[name] = (
            torch.empty(0, dtype=dtype).set_(storage, offset // dtype.itemsize, (count,), (1,)).view(symbol.shape)
        )
    return views
