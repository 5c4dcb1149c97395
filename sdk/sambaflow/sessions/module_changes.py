"""Finds changes of a traced model: values that a program sets, adds or replaces, wherever forward may read them.

Each run checks, so only identities are compared: microseconds for a small model. If one differs, values are compared.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, is_
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from sambaflow.tracing.module_state import ModuleState, slots_of
from sambaflow.tracing.program_state import Cell, Names
from sambaflow.tracing.torch_private import DisableTorchFunctionSubclass, FakeTensor

_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
#: Attributes of modules that do not affect forward, or that the check of the mode covers.
_OTHERS: Final = frozenset(
    {"training", "name", "sn_prefix", "call_super_init", "dump_patches", "output_tensors", "run", "_buffers"}
)
#: Properties of a parameter whose changes a graph cannot follow.
_LOOK: Final = attrgetter("requires_grad", "dtype", "__class__", "_backward_hooks", "_post_accumulate_grad_hooks")
_FORWARD: Final = attrgetter("forward")
#: A dict's values, read past our classes that watch reads.
_VALUES: Final[Callable[[dict[str, Any]], Iterable[Any]]] = dict.values


class ModuleChanges:
    """Parts of a traced model and of its code, for finding a program's later changes.

    Args:
        followed: tensors whose in-place changes need no check: each run uploads them, and the trace does not depend on
            their values.
    """

    def __init__(self, model: nn.Module, followed: Iterable[torch.Tensor] = ()) -> None:
        self._model = model
        self._followed_tensors = list(followed)
        self.accept()

    def accept(self) -> None:
        """Take the present model as the reference."""
        paths = {id(m): path for path, m in self._model.named_modules()}
        modules = list(self._model.modules())
        self._state = ModuleState(self._model)
        self._identities = _Identities(self._state.containers(), modules)
        #: Buffers with their paths and forms. References keep their identities from being reused.
        self._buffers = self._look_at_buffers()
        #: Classes of the modules, with their functions.
        self._modules, self._kinds = modules, list(map(type, modules))
        self._classes = list(dict.fromkeys(self._kinds))
        self._forwards = list(map(_FORWARD, self._classes))
        self._hooks = [(f"{paths[id(m)]}.{key}".lstrip("."), vars(m)[key]) for m in modules for key in _HOOKS]
        self._hook_counts = [len(hooks) for _, hooks in self._hooks]
        self._tables = [(paths[id(m)], t, list(_VALUES(t))) for m in modules for t in (m._modules, m._parameters)]
        named = list(self._model.named_parameters())
        self._parameters = [parameter for _, parameter in named]
        self._names = [path for path, _ in named]
        with DisableTorchFunctionSubclass():
            self._followed = self._look_at_parameters()
        followed_ids = set(map(id, self._followed_tensors)) | set(map(id, self._parameters))
        #: Tensors that runs do not upload: forward may have read their values.
        self._read = [t for t in self._identities.tensors() if id(t) not in followed_ids]
        self._versions = [(t._version, t.data_ptr()) for t in self._read]

    def _look_at_parameters(self) -> list[tuple[Any, ...]]:
        return [
            (flag, dtype, kind, len(before or ()), len(after or ()))
            for flag, dtype, kind, before, after in map(_LOOK, self._parameters)
        ]

    def _look_at_buffers(self) -> dict[str, tuple[Any, ...]]:
        return {
            f"{path}.{key}".lstrip("."): (b, None if b is None else (b.shape, b.dtype))
            for path, m in self._model.named_modules()
            for key, b in dict.items(m._buffers)
        }

    def find(self) -> str:
        """Describe the change for people; empty if there is none."""
        with DisableTorchFunctionSubclass():
            is_same = self._identities.are_same() and self._look_at_parameters() == self._followed
            is_same = is_same and [(t._version, t.data_ptr()) for t in self._read] == self._versions
        if is_same and list(map(type, self._modules)) == self._kinds:
            if list(map(_FORWARD, self._classes)) == self._forwards:
                return ""
            return "the forward of a class"
        if (refusal := self.refusal()) is not None:
            return refusal
        if list(map(type, self._modules)) != self._kinds:
            return "the class of a module"
        found = [*self._state.changed(_OTHERS), *self._changed_buffers(), *self._changed_tensors()]
        if found:
            return repr(found[0])
        self._identities.accept()
        return ""

    def _changed_buffers(self) -> list[str]:
        now, before = self._look_at_buffers(), self._buffers
        return [path for path in {**before, **now} if not _is_alike(now.get(path), before.get(path))]

    def _changed_tensors(self) -> list[str]:
        changed = {
            id(t) for t, version in zip(self._read, self._versions, strict=True)
            if (t._version, t.data_ptr()) != version
        }  # fmt: skip
        held = [
            f"{path}.{key}".lstrip(".")
            for path, m in self._model.named_modules()
            for key, value in [*vars(m).items(), *dict.items(m._buffers)]
            if id(value) in changed
        ]
        return held or ["a tensor"] * bool(changed)

    def refusal(self) -> str | None:
        """Describe a change that no graph can follow; None if there is none."""
        for (path, hooks), before in zip(self._hooks, self._hook_counts, strict=True):
            if len(hooks) > before:
                return f"a hook was registered after tracing ({path})"
        for owner, table, members in self._tables:
            if not _are_same(list(_VALUES(table)), members):
                shown = owner or "the model"
                return f"a module or a parameter of {shown!r} was added, removed or replaced after tracing"
        with DisableTorchFunctionSubclass():
            now = self._look_at_parameters()
        for path, one, other in zip(self._names, now, self._followed, strict=True):
            for place, what in enumerate(("requires_grad", "dtype", "the class")):
                if one[place] != other[place]:
                    return f"{what} of parameter {path!r} is {one[place]} now; when traced it was {other[place]}"
            if one[3] > other[3] or one[4] > other[4]:
                return f"a hook was registered on parameter {path!r} after tracing"
        return None


class _Identities:
    """The values in containers, compared by identity: some ten nanoseconds for each value."""

    def __init__(self, containers: Sequence[Any], modules: Sequence[nn.Module]) -> None:
        #: Iterables of the current values.
        self._views: list[Iterable[Any]] = [dict.values(m._buffers) for m in modules]
        self._views += [vars(m)[key].values() for m in modules for key in _HOOKS]
        #: Owners and attribute names, if there is no cheap view.
        self._owners: list[Any] = []
        self._keys: list[str] = []
        self._arrays = [array for array in containers if isinstance(array, np.ndarray)]
        for container in containers:
            match container:
                case np.ndarray():
                    continue
                case Names(owner, None):
                    self._views.append(vars(owner).values())
                case Names(owner, names):
                    self._ask(owner, names or ())
                case Cell():
                    self._ask(container.cell, ["cell_contents"])
                case dict():
                    self._views.append(_VALUES(container))
                case _ if hasattr(container, "__iter__") and not hasattr(container, "__dict__"):
                    self._views.append(container)
                case _ if hasattr(container, "__dict__"):
                    self._views.append(vars(container).values())
                case _:
                    self._ask(container, slots_of(container))
        self.accept()

    def _ask(self, owner: Any, names: Iterable[str]) -> None:
        for name in names:
            self._owners.append(owner)
            self._keys.append(name)

    def _look(self) -> list[Any]:
        values = list(itertools.chain.from_iterable(self._views))
        values.extend(map(getattr, self._owners, self._keys, itertools.repeat(None)))
        return values

    def accept(self) -> None:
        """Take the present values as the reference."""
        #: References keep their identities from being reused.
        self._held = self._look()
        self._contents = [array.tobytes() for array in self._arrays]

    def are_same(self) -> bool:
        """Return whether all values are the same objects, and the arrays' numbers the same."""
        try:
            now = self._look()
        except ValueError:  # a variable of an enclosing function that was deleted
            return False
        return _are_same(now, self._held) and [array.tobytes() for array in self._arrays] == self._contents

    def tensors(self) -> list[torch.Tensor]:
        """Return the torch tensors among the values, except those without numbers that a trace left behind."""
        found = {id(v): v for v in self._held if isinstance(v, torch.Tensor) and not isinstance(v, FakeTensor)}
        return [v for v in found.values() if v.layout is torch.strided and not v.is_meta]


def _are_same(now: Sequence[Any], before: Sequence[Any]) -> bool:
    return len(now) == len(before) and all(map(is_, now, before))


def _is_alike(now: tuple[Any, ...] | None, before: tuple[Any, ...] | None) -> bool:
    """Return whether a buffer is the same object in the same form; two that are None are alike."""
    if now is None or before is None:
        return (now or before or (None,))[0] is None
    return now[0] is before[0] and now[1] == before[1]
