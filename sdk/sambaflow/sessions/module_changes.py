"""Changes of a traced model: what a program sets, adds or replaces in its modules after tracing.

Each run looks, so it compares plain values and identities only: microseconds for a small model.
"""

import functools
import itertools
import types
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final

from torch import nn

from sambaflow.tracing.torch_private import DisableTorchFunctionSubclass

#: Attributes that forward may read: settings, and functions such as an activation.
_PLAIN: Final = (
    bool, int, float, str, type(None), types.FunctionType, types.BuiltinFunctionType, types.MethodType,
    functools.partial,
)  # fmt: skip
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
#: Attributes that tell nothing about what forward computes, or that the mode's own check covers.
_OTHERS: Final = frozenset({"training", "name", "sn_prefix", "call_super_init", "dump_patches"})
#: Of a parameter: what a graph cannot follow.
_LOOK: Final = attrgetter("requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks")
_FORWARD: Final = attrgetter("forward")
#: A dict's values, also where a class of ours watches its reading.
_VALUES: Final[Callable[[dict[str, Any]], Iterable[Any]]] = dict.values


class ModuleChanges:
    """The numbers, members and hooks of a traced model, and what a program changes of them later."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.accept()

    def accept(self) -> None:
        """Compare with the present model from now on."""
        paths = {id(m): path for path, m in self._model.named_modules()}
        modules = list(self._model.modules())
        plain = [
            (m, key) for m in modules for key, value in vars(m).items()
            if _is_plain(value) and key not in _OTHERS and not key.startswith("_")
        ]  # fmt: skip
        #: Attributes that hold plain values: the dict and the key of each, its path, and a copy of its value.
        self._places = [(vars(m), key) for m, key in plain]
        self._paths = [f"{paths[id(m)]}.{key}".lstrip(".") for m, key in plain]
        self._values = [_copied(place[key]) for place, key in self._places]
        #: The modules' own dicts with their lengths: a program may add an attribute that forward asks for.
        self._owned = [vars(m) for m in modules]
        self._counts = list(map(len, self._owned))
        #: Classes of the modules, and what each computes by.
        self._modules, self._kinds = modules, list(map(type, modules))
        self._classes = list(dict.fromkeys(self._kinds))
        self._forwards = list(map(_FORWARD, self._classes))
        self._hooks = [(f"{paths[id(m)]}.{key}".lstrip("."), vars(m)[key]) for m in modules for key in _HOOKS]
        self._hook_tables = [hooks for _, hooks in self._hooks]
        self._hook_counts = list(map(len, self._hook_tables))
        owned = [(paths[id(m)], table) for m in modules for table in (m._modules, m._parameters) if table]
        self._owners = [path for path, _ in owned]
        self._tables: list[dict[str, Any]] = [table for _, table in owned]
        #: Held, so that nothing else gets their identities.
        self._members = [list(dict.values(table)) for table in self._tables]
        self._identities = self._look_at_members()
        named = list(self._model.named_parameters())
        self._parameters = [parameter for _, parameter in named]
        self._names = [path for path, _ in named]
        with DisableTorchFunctionSubclass():
            self._followed = self._look_at_parameters()

    def _look_at_members(self) -> list[int]:
        return list(map(id, itertools.chain.from_iterable(map(_VALUES, self._tables))))

    def _look_at_parameters(self) -> list[tuple[bool, int, int]]:
        return [(flag, len(before or ()), len(after or ())) for flag, before, after in map(_LOOK, self._parameters)]

    def find(self) -> str:
        """Return what changed, for people; empty if nothing did."""
        now = [place.get(key) for place, key in self._places]
        if _differ(now, self._values):
            return next(
                repr(path) for path, one, other in zip(self._paths, now, self._values, strict=True)
                if _differ([one], [other])
            )  # fmt: skip
        if list(map(len, self._owned)) != self._counts:
            return "an attribute that was added or removed"
        if list(map(type, self._modules)) != self._kinds or list(map(_FORWARD, self._classes)) != self._forwards:
            return "the class of a module, or its forward,"
        return self.refusal() or ""

    def refusal(self) -> str | None:
        """Say which change no graph can follow; None without one."""
        if (counts := list(map(len, self._hook_tables))) != self._hook_counts:
            for (path, _), count, before in zip(self._hooks, counts, self._hook_counts, strict=True):
                if count > before:
                    return f"a hook was registered after tracing ({path})"
        if self._look_at_members() != self._identities:
            owner = next(
                owner for owner, table, members in zip(self._owners, self._tables, self._members, strict=True)
                if list(map(id, _VALUES(table))) != list(map(id, members))
            )  # fmt: skip
            return f"a module or a parameter of {owner or 'the model'!r} was added, removed or replaced after tracing"
        with DisableTorchFunctionSubclass():
            now = self._look_at_parameters()
        if now != self._followed:
            for path, one, other in zip(self._names, now, self._followed, strict=True):
                if one[0] != other[0]:
                    return f"requires_grad of parameter {path!r} is {one[0]} now, and was {other[0]} when it was traced"
                if one[1] > other[1] or one[2] > other[2]:
                    return f"a hook was registered on parameter {path!r} after tracing"
        return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return isinstance(value, _PLAIN)


def _copied(value: Any) -> Any:
    """Return ``value`` as a program cannot change it in place."""
    if isinstance(value, list | tuple):
        return type(value)(map(_copied, value)) if type(value) in (list, tuple) else value
    return {key: _copied(item) for key, item in value.items()} if type(value) is dict else value


def _differ(now: list[Any], before: list[Any]) -> bool:
    try:
        return now != before
    except (RuntimeError, ValueError, TypeError):  # a tensor or an array took a number's place
        return True
