"""The host's copies of parameters and buffers: which of the two copies is newer, and the host's changes since.

Reading a parameter or a buffer on the host gives the device's value, and a change on the host reaches the device with
the next run. Comparing all values would cost too much in each run, so changes are found by versions and addresses.

A program may keep objects that share memory with a parameter: ``data``, a view, a state dict, an array. In torch they
show each update. Therefore memory with other users than the parameter gets the device's value after each run, and its
values are compared before each run, because arrays have no version.

Source: ours. The vendor copies by explicit calls only (SDK reference 1); these remain, and work as before.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from rdukit.errors import InvalidArgument
from rdukit.pef.model import Pef, SectionType
from sambaflow.tracing.torch_private import DisableTorchFunctionSubclass, count_users, data_of

#: Version of the values, address, dtype.
Fingerprint = tuple[int, int, torch.dtype]


class HostCopies:
    """Tensors of the host by symbol name, each with a copy on the device.

    Args:
        state: the tensors; the same mapping as the loaded PEF's. read, write: copy from and to the device.
    """

    def __init__(
        self, pef: Pef, state: Mapping[str, torch.Tensor], read: Callable[[str], torch.Tensor],
        write: Callable[[str, torch.Tensor], None],
    ) -> None:  # fmt: skip
        self._pef = pef
        self._state = state
        self._read = read
        self._write = write
        #: Symbol → mark of the host's tensor when both copies were equal.
        self._known: dict[str, Fingerprint] = {}
        #: Symbols whose device copy is newer.
        self._stale: set[str] = set()
        #: Symbol → result of ``.data``, with the same memory but its own version, and that version.
        self._lent: dict[str, tuple[torch.Tensor, int]] = {}
        #: Symbol → its memory, which the program may hold: read since the last run, or held at the last check.
        self.kept: dict[str, torch.UntypedStorage] = {}
        #: Those of these symbols whose values are compared before a run: numpy changes them without a new version.
        self._touched: set[str] = set()
        #: Sections → the symbols that they change.
        self._changed_by: dict[tuple[int, ...], frozenset[str]] = {}
        self._modules: list[nn.Module] = []
        #: Identity of a watched buffer → its symbol.
        self._symbols: dict[int, str] = {}
        self.note(state)
        self._constants = [name for name in self._known if "__constant__" in name]
        for name in self._known:
            if self._pef.symbols[name].kind == "parameter":
                self._look(name, state[name])
        self._touched.update(self.kept)

    def note(self, names: Iterable[str]) -> None:
        """Mark both copies of ``names`` as equal."""
        with DisableTorchFunctionSubclass():
            for name in names:
                tensor = self._state.get(name)
                if tensor is not None and name in self._pef.symbols and not tensor.is_meta:
                    self._known[name] = _fingerprint(tensor)
                    self._stale.discard(name)
                    if (lent := self._lent.get(name)) is not None:
                        self._lent[name] = lent[0], lent[0]._version
                        if lent[0].data_ptr() != tensor.data_ptr():
                            del self._lent[name]
                    if name in self.kept:
                        self.kept[name] = tensor.untyped_storage()

    def note_traced(self) -> None:
        """Ignore a trace's changes of tensors other than parameters and buffers, which it restores."""
        for name in self._constants:
            self._known[name] = _fingerprint(self._state[name])

    def note_device(self, names: Iterable[str]) -> None:
        """Mark the device's copies of ``names`` as newer."""
        self._stale.update(name for name in names if name in self._known)

    def note_run(self, sections: tuple[int, ...]) -> None:
        """Mark the symbols that ``sections`` change as newer on the device."""
        changed = self._changed_by.get(sections)
        if changed is None:
            changed = self._changed_by[sections] = self._find_changed(sections)
        self._stale |= changed

    def refresh(self) -> None:
        """Copy the device's newer values to memory that the program holds in addition to the parameter or buffer.

        Reads of tensors other than parameters and buffers are not noticed, so these are always copied.
        """
        found = [name for name in self._constants if name in self._stale]
        for name in list(self.kept):
            if not self._is_kept(name):
                del self.kept[name]
                self._lent.pop(name, None)
            elif name in self._stale:
                found.append(name)
        for name in found:
            self._take(name, self._state[name])

    def _look(self, name: str, tensor: torch.Tensor) -> None:
        if name not in self.kept:
            with DisableTorchFunctionSubclass():
                self.kept[name] = tensor.untyped_storage()

    def _is_kept(self, name: str) -> bool:
        """Return whether the program holds the tensor's memory in addition to the parameter.

        Buffers always count as held: a program's reads of a buffer that it holds are not noticed.
        """
        own = 3 if name in self._lent else 2
        return self._pef.symbols[name].kind == "buffer" or bool(count_users(self.kept[name]._cdata) > own)

    def _find_changed(self, sections: tuple[int, ...]) -> frozenset[str]:
        found: set[str] = set()
        for number in sections:
            section = self._pef.sections[number]
            found.update(section.outputs)
            if section.type is SectionType.OPT:
                found.update(section.inputs)
        kinds = self._pef.symbols
        return frozenset(n for n in found & self._known.keys() if kinds[n].kind == "buffer") | frozenset(
            n for n in found & self._known.keys() if kinds[n].kind == "parameter" and self._state[n].requires_grad
        )

    def stale_constants(self) -> list[str]:
        """Return the tensors that are neither parameters nor buffers of a module and are newer on the device."""
        return [name for name in self._constants if name in self._stale]

    # -- reading ---------------------------------------------------------------------------------------------------

    def pull(self, name: str, tensor: torch.Tensor) -> None:
        """Copy the device's value to ``tensor`` if it is newer and ``tensor`` is the host's copy of ``name``.

        The program reads it now, and may keep an object that shares its memory.
        """
        if name not in self._known or self._state.get(name) is not tensor:
            return
        self._look(name, tensor)
        if name in self._stale:
            self._take(name, tensor)

    def pull_all(self, values: Iterable[Any]) -> None:
        """Copy the device's values to the parameters among ``values``, also inside lists."""
        for value in values:
            if isinstance(value, nn.Parameter):
                self.pull(getattr(value, "sn_name", ""), value)
            elif isinstance(value, list | tuple):
                self.pull_all(value)

    def _take(self, name: str, tensor: torch.Tensor) -> None:
        self._check_unedited(name, tensor)
        with DisableTorchFunctionSubclass(), torch.no_grad():
            data_of(tensor).copy_(self._read(name))
        self._stale.discard(name)

    def lend(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor.data``, whose changes are noticed."""
        with DisableTorchFunctionSubclass():
            if self._state.get(name) is not tensor or name not in self._known:
                return data_of(tensor)  # type: ignore[no-any-return]
            self._look(name, tensor)
            self._touched.add(name)
            lent = self._lent.get(name)
            if lent is None or lent[0].data_ptr() != tensor.data_ptr() or lent[0].dtype != tensor.dtype:
                data = data_of(tensor)
                lent = self._lent[name] = data, data._version
            return lent[0].detach()

    def watch_buffers(self, model: nn.Module) -> None:
        """Make reads of a buffer of ``model`` return the device's value."""
        symbols = self._symbols
        symbols.update({id(t): name for name, t in self._state.items() if not isinstance(t, nn.Parameter)})
        for module in model.modules():
            if any(id(buffer) in symbols for buffer in module._buffers.values()):
                module._buffers = WatchedBuffers(module._buffers, self, symbols)
                self._modules.append(module)

    def replace(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace tensors by those of the program, by symbol; the device has their values."""
        self._symbols.update({id(tensor): name for name, tensor in tensors.items()})
        self.note(tensors)

    def release(self) -> None:
        """Stop watching."""
        for module in self._modules:
            if isinstance(module._buffers, WatchedBuffers):
                module._buffers = dict(dict.items(module._buffers))
        self._modules.clear()

    # -- writing ---------------------------------------------------------------------------------------------------

    def push(self) -> None:
        """Copy the host's changes since both copies were equal to the device.

        Raises:
            InvalidArgument: both copies changed. ShapeMismatch: a tensor has another shape.
        """
        state = self._state
        with DisableTorchFunctionSubclass():
            found = [
                name for name, known in self._known.items()
                if (tensor := state[name])._version != known[0] or tensor.data_ptr() != known[1]
                or tensor.dtype != known[2]
            ]  # fmt: skip
            if self._lent:
                found += [name for name, (data, version) in self._lent.items() if data._version != version]
            for name in self._touched:
                if name not in self._stale and not torch.equal(data_of(state[name]), self._read(name)):
                    found.append(name)
            self._touched.intersection_update(self.kept)
            for name in dict.fromkeys(found):
                if name in self._stale:
                    self._refuse(name)
                self._write(name, data_of(state[name]))
        if found:
            self.note(found)

    def _check_unedited(self, name: str, tensor: torch.Tensor) -> None:
        with DisableTorchFunctionSubclass():
            lent = self._lent.get(name)
            if _fingerprint(tensor) != self._known[name] or (lent is not None and lent[0]._version != lent[1]):
                self._refuse(name)

    def _refuse(self, name: str) -> None:
        raise InvalidArgument(
            f"the program changed {name!r} through a tensor from before the last run, which also changed it on the "
            "device; read it again from the model and change that"
        )


class WatchedBuffers(dict[str, Any]):
    """A module's buffers, whose reads return the device's values. It is pickled and copied as a plain dict."""

    __slots__ = ("_copies", "_symbols")

    def __init__(self, buffers: Mapping[str, Any], copies: HostCopies, symbols: Mapping[int, str]) -> None:
        super().__init__(buffers)
        self._copies = copies
        self._symbols = symbols

    def _pulled(self, buffer: Any) -> Any:
        if (name := self._symbols.get(id(buffer))) is not None:
            self._copies.pull(name, buffer)
        return buffer

    def __getitem__(self, key: str) -> Any:
        return self._pulled(super().__getitem__(key))

    def get(self, key: str, default: Any = None) -> Any:
        """Return the buffer called ``key``, or ``default``."""
        return self._pulled(super().get(key, default))

    def items(self) -> Any:
        """Return the names with the buffers."""
        for buffer in super().values():
            self._pulled(buffer)
        return super().items()

    def values(self) -> Any:
        """Return the buffers."""
        for buffer in super().values():
            self._pulled(buffer)
        return super().values()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.items()),)


def _fingerprint(tensor: torch.Tensor) -> Fingerprint:
    return tensor._version, tensor.data_ptr(), tensor.dtype
