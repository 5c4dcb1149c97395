"""Device memory of a loaded PEF: its symbols as tensors, and copies in and out.

Copies of plain host memory avoid torch's own copy, whose checks take longer than the copy of a small batch.
"""

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from rdukit.errors import InvalidArgument, ShapeMismatch, UnknownTensor
from rdukit.pef.memory import PERSISTENT, persistent_layout, shared_outputs
from rdukit.pef.model import Pef, Symbol, SymbolKind
from rdukit_node.status_page import ARGUMENT_LOAD, CHECKPOINT, StatusPage, private_page
from rdukit_runtime.engine.device import CPU, allocate_regions
from rdukit_runtime.engine.quantized_weights import WEIGHT_FORMATS


class DeviceTensors:
    """A slot per symbol of a PEF; values that outlive a run lie in device memory.

    Args:
        memory: writable, zeroed, at least as large as ``persistent_layout`` requires. page: status page that counts
            transfers. device: device of the tensors. ``memory`` is used on the host only.
    """

    def __init__(
        self, pef: Pef, memory: memoryview, page: StatusPage | None = None, device: torch.device = CPU
    ) -> None:
        self.pef = pef
        self.device = device
        self.page = private_page() if page is None else page
        self._transfer_phase = ARGUMENT_LOAD
        self._slot_of = {name: position for position, name in enumerate(pef.symbols)}
        #: One tensor per symbol; None: not computed yet, or freed.
        self._slots: list[torch.Tensor | None] = [None] * len(self._slot_of)
        #: Outputs that outlive the run, by name: their place in persistent memory.
        self._homes: dict[str, torch.Tensor] = {}
        #: Region → the output that was stored there last.
        self._stored: dict[str, str] = {}
        #: Inputs of a graph that another graph makes → the slot in which the other graph keeps them.
        self._made_slots: dict[str, int] = {}
        #: Addresses of the set of parameters that is used in place of the own ones.
        self._set_addresses = range(0)
        #: Addresses of gradients that have places of their own.
        self._placed_addresses = range(0)
        self._place_persistent(memory)
        for graph in pef.graphs.values():
            for loss in graph.losses:
                self._tensor(graph.seeds[loss]).fill_(1)

    def _place_persistent(self, memory: memoryview) -> None:
        offsets, size = persistent_layout(self.pef)
        if len(memory) < size:
            raise InvalidArgument(f"device memory of {len(memory)} bytes is too small; the PEF needs {size}")
        shared = shared_outputs(self.pef)
        held = {name: s for name, s in self.pef.symbols.items() if s.kind in PERSISTENT or name in shared}
        regions: dict[str, torch.Tensor] = {}
        if self.device.type == "cpu":
            begin = torch.frombuffer(memory, dtype=torch.uint8).data_ptr() if len(memory) else 0
            self._addresses = range(begin, begin + len(memory))
        else:
            sizes: dict[str, int] = {}
            for symbol in held.values():
                sizes[symbol.region] = max(sizes.get(symbol.region, 0), symbol.bytes)
            regions = allocate_regions(sizes, self.device)
            self._storages = frozenset(region.untyped_storage()._cdata for region in regions.values())
        for name, symbol in held.items():
            dtype: torch.dtype = getattr(torch, symbol.dtype)
            count = symbol.bytes // dtype.itemsize
            if not count:
                flat = torch.empty(0, dtype=dtype, device=self.device)
            elif regions:
                flat = regions[symbol.region][symbol.offset : symbol.offset + symbol.bytes].view(dtype)
            else:
                flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=offsets[symbol.region] + symbol.offset)
            if name in shared:
                self._homes[name] = flat.view(symbol.shape)
            else:
                self._slots[self._slot_of[name]] = flat.view(symbol.shape)
        for section in self.pef.sections:
            for name in section.outputs:
                if self.pef.symbols[name].kind is SymbolKind.INPUT and name not in self._made_slots:
                    self._made_slots[name] = len(self._slots)
                    self._slots.append(None)

    def _is_persistent(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies in persistent memory, as a view of an input does."""
        if self.device.type == "cpu":
            address = tensor.untyped_storage().data_ptr()
            return any(address in held for held in (self._addresses, self._set_addresses, self._placed_addresses))
        return tensor.untyped_storage()._cdata in self._storages

    def symbol(self, name: str) -> Symbol:
        """Return the symbol called ``name``.

        Raises:
            UnknownTensor: the PEF has no such symbol; the message lists its inputs.
        """
        symbol = self.pef.symbols.get(name)
        if symbol is None:
            inputs = sorted(s.name for s in self.pef.symbols.values() if s.kind is SymbolKind.INPUT)
            raise UnknownTensor(f"the PEF has no tensor {name!r}; its inputs are {', '.join(inputs)}")
        return symbol

    def find_tensor(self, name: str) -> str:
        """Return the symbol of ``name``: itself, or for a region the symbol that was stored there last.

        Raises:
            UnknownTensor: neither exists.
        """
        if name in self._slot_of:
            return name
        held = [s.name for s in self.pef.symbols.values() if s.region == name]
        return self._stored.get(name) or (held[0] if held else self.symbol(name).name)

    def write(self, name: str, value: torch.Tensor) -> None:
        """Copy ``value`` into device memory, converting its dtype.

        Raises:
            UnknownTensor: no such tensor; or it cannot be written. ShapeMismatch: shapes differ, or one is of numbers
            and the other of integers.
        """
        self.write_all([(name, value)])

    def write_all(self, values: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Write several tensors; all are checked before the first is copied."""
        for name, value in values:
            self._check_writable(name, value)
        self._transfer(values)

    def writer(self, values: Sequence[tuple[str, torch.Tensor]]) -> Callable[[], None]:
        """Return a function that writes the same tensors at each call, with the values of that moment. Checks them now.

        Raises:
            UnknownTensor, ShapeMismatch: as ``write``.
        """
        for name, value in values:
            self._check_writable(name, value)
        if any(self.pef.symbols[name].scale for name, _ in values):
            return lambda: self._transfer(values)
        pairs = [(self._tensor(name), value) for name, value in values]
        size = sum(tensor.nbytes for tensor, _ in pairs)
        page = self.page

        def write() -> None:
            former = page.enter(self._transfer_phase)
            try:
                for tensor, value in pairs:
                    tensor.copy_(value)
                page.count_transfer(size, 0)
            finally:
                page.enter(former)

        return write

    def _transfer(self, copies: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Copy from the host to the device."""
        page = self.page
        former = page.enter(self._transfer_phase)
        try:
            count = 0
            for name, value in copies:
                count += self._put(name, value)
            page.count_transfer(count, 0)
        finally:
            page.enter(former)

    def _put(self, name: str, value: torch.Tensor) -> int:
        """Copy a value to its place, converted; the bytes that it takes there."""
        tensor, scale = self._tensor(name), self.pef.symbols[name].scale
        if not scale or not value.is_floating_point():
            return tensor.copy_(value).nbytes
        rows, scales = WEIGHT_FORMATS[self.pef.symbols[name].dtype].quantize(value)
        return tensor.copy_(rows).nbytes + self._tensor(scale).copy_(scales).nbytes

    def _check_writable(self, name: str, value: torch.Tensor) -> None:
        tensor = self._slots[self._slot_of[name]] if name in self._slot_of else None
        if tensor is None or self.pef.symbols[name].kind not in PERSISTENT:
            symbol = self.symbol(name)
            raise UnknownTensor(f"tensor {name!r} is made by the graph ({symbol.kind}) and cannot be written")
        shape = self.pef.host_shape(name) if value.is_floating_point() else tensor.shape
        if value.shape != shape:
            raise ShapeMismatch(
                f"tensor {name!r} has shape {list(value.shape)}, but the PEF was compiled for {list(shape)}; batch "
                "size and sizes are fixed at compile time"
            )
        is_quantized = bool(self.pef.symbols[name].scale) and value.is_floating_point()
        if not is_quantized and value.dtype != tensor.dtype and value.is_floating_point() != tensor.is_floating_point():
            raise ShapeMismatch(
                f"tensor {name!r} is {value.dtype}, but the PEF was compiled for {self.pef.symbols[name].host_dtype}; "
                "convert it first, because the engine does not convert between integers and floating-point numbers"
            )
        if value.dtype != tensor.dtype and not (value.is_floating_point() or value.is_complex()):
            _check_range(name, value, getattr(torch, self.pef.symbols[name].host_dtype))

    def read(self, name: str) -> torch.Tensor:
        """Return a copy of a tensor in the program's dtype.

        Raises:
            UnknownTensor: no such tensor, or nothing has computed it yet.
        """
        symbol = self.symbol(name)
        tensor = self._homes[name] if name in self._homes else self._tensor(name)
        return self.to_host(tensor, symbol)

    def read_into(self, name: str, destination: torch.Tensor) -> None:
        """Read into ``destination``, which has the tensor's shape: copy and convert.

        Raises:
            UnknownTensor: no such tensor, or nothing has computed it yet.
        """
        tensor = self._homes[name] if name in self._homes else self._tensor(name)
        former = self.page.enter(self._transfer_phase)
        try:
            self.page.count_transfer(0, tensor.nbytes)
            destination.copy_(tensor)
        finally:
            self.page.enter(former)

    def to_host(self, tensor: torch.Tensor, symbol: Symbol) -> torch.Tensor:
        """Return a copy of a device tensor in the program's dtype; counted as having crossed PCIe."""
        former = self.page.enter(self._transfer_phase)
        try:
            self.page.count_transfer(0, tensor.nbytes)
            if symbol.scale:
                tensor = WEIGHT_FORMATS[symbol.dtype].dequantize(tensor, self._tensor(symbol.scale))
            return tensor.to(CPU, getattr(torch, symbol.host_dtype), copy=True)
        finally:
            self.page.enter(former)

    @contextlib.contextmanager
    def checkpointing(self) -> Iterator[None]:
        """Count transfers within the block as ``chkpt``, not as ``aload``."""
        former, self._transfer_phase = self._transfer_phase, CHECKPOINT
        try:
            yield
        finally:
            self._transfer_phase = former

    def has_value(self, name: str) -> bool:
        """Return whether there is such a tensor, and it can be read."""
        return name in self._homes or (name in self._slot_of and self._slots[self._slot_of[name]] is not None)

    def device_tensor(self, name: str) -> torch.Tensor:
        """Return the device's own tensor; a copy of an input that a graph makes, and of a placed gradient."""
        self.symbol(name)
        tensor = self._tensor(name)
        return tensor.clone() if name in self._made_slots or tensor.data_ptr() in self._placed_addresses else tensor

    def replace(self, name: str, value: torch.Tensor) -> None:
        """Replace a transient tensor, such as a gradient, by ``value`` of the same shape and type."""
        held = self._tensor(name)
        assert value.shape == held.shape and value.dtype == held.dtype and self.symbol(name).kind not in PERSISTENT
        self._slots[self._slot_of[name]] = value

    def gradient(self, name: str) -> torch.Tensor | None:
        """Return the gradient of ``name`` from the last backward, contributions added up, in the program's dtype.

        Returns:
            None: no gradient flows into this input, parameter or buffer of a training PEF.
        Raises:
            UnknownTensor: backward has not run, or the PEF has no backward.
        """
        symbol = self.symbol(name)
        parts = next((g.gradients[name] for g in self.pef.graphs.values() if name in g.gradients), ())
        if (
            not parts
            and not self.pef.inference
            and symbol.kind in {SymbolKind.INPUT, SymbolKind.PARAMETER, SymbolKind.BUFFER}
        ):
            return None
        tensors = [self._slots[self._slot_of[part]] for part in parts]
        if not tensors or any(tensor is None for tensor in tensors):
            raise UnknownTensor(f"tensor {name!r} has no gradient; run 'bckwd' of a training PEF first")
        total = sum(t.to(torch.float32) for t in tensors if t is not None)
        assert isinstance(total, torch.Tensor)
        return total.to(CPU, getattr(torch, symbol.host_dtype))

    def seed(self, output: str, value: torch.Tensor | None) -> None:
        """Set the incoming gradient of an output, until set again; None restores the default."""
        for graph in self.pef.graphs.values():
            if (name := graph.seeds.get(output)) is not None:
                tensor = self._tensor(name)
                if value is None:
                    tensor.fill_(1 if output in graph.losses else 0)
                else:
                    if value.shape != tensor.shape:
                        raise ShapeMismatch(
                            f"the gradient of {output!r} has shape {list(value.shape)}, expected {list(tensor.shape)}"
                        )
                    tensor.copy_(value)
                return
        raise UnknownTensor(f"output {output!r} has no gradient, because it is not an output of a training graph")

    def _tensor(self, name: str) -> torch.Tensor:
        tensor = self._slots[self._slot_of[name]]
        if tensor is None:
            raise UnknownTensor(f"tensor {name!r} has no value; first run the section that computes it")
        return tensor


def copy_between(destination: torch.Tensor, source: torch.Tensor) -> Callable[[], object]:
    """Return a call that copies the then content of ``source`` into ``destination``, converted; both stay in place."""
    if not (_is_plain(destination) and _is_plain(source) and source.dtype is destination.dtype):
        return partial(destination.copy_, source)
    addresses = destination.data_ptr(), source.data_ptr()
    move = partial(ctypes.memmove, *addresses, source.nbytes)
    move.tensors = destination, source  # type: ignore[attr-defined] # kept alive
    return move


def copy_into(destination: torch.Tensor) -> Callable[[torch.Tensor], object]:
    """Return a call that copies a tensor of the same shape into ``destination``, converted."""
    if not _is_plain(destination):
        return destination.copy_
    address, size, dtype = destination.data_ptr(), destination.nbytes, destination.dtype

    def copy(made: torch.Tensor) -> None:
        if made.dtype is dtype and made.is_contiguous():
            ctypes.memmove(address, made.data_ptr(), size)
        else:
            destination.copy_(made)

    return copy


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous()


def _check_range(name: str, value: torch.Tensor, dtype: torch.dtype) -> None:
    """Check that integers, or truth values, are what ``dtype`` can hold.

    Raises:
        ShapeMismatch: a value is out of range.
    """
    if value.dtype in {dtype, torch.bool} or value.is_meta or not value.numel():
        return
    low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    smallest, largest = (int(bound) for bound in value.aminmax())
    if smallest < low or largest > high:
        raise ShapeMismatch(
            f"tensor {name!r} is {value.dtype} with values from {smallest} to {largest}, but the PEF was compiled for "
            f"{dtype}, which holds {low} to {high}; compile with a wider dtype"
        )
