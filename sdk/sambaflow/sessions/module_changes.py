"""Changes of a traced model: what a program sets, adds or replaces in its modules after tracing.

Each run looks, so it compares numbers and identities only: microseconds for a small model.
"""

from typing import Any, Final

from torch import nn

from sambaflow.tracing.torch_private import DisableTorchFunctionSubclass

_NUMBERS: Final = (bool, int, float, str)
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
#: Attributes that tell nothing about what forward computes, or that the mode's own check covers.
_OTHERS: Final = frozenset({"training", "name", "sn_prefix", "call_super_init", "dump_patches"})


class ModuleChanges:
    """What ``model`` is like, and how that differs later."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.accept()

    def accept(self) -> None:
        """Take the model as it is now."""
        paths = {id(m): path for path, m in self._model.named_modules()}
        modules = list(self._model.modules())
        #: Attributes, hooks, and the dict of each with the key; then what is there.
        self._places = [
            (vars(m), key) for m in modules for key, value in vars(m).items()
            if isinstance(value, _NUMBERS) and key not in _OTHERS and not key.startswith("_")
        ]  # fmt: skip
        self._paths = [
            f"{paths[id(m)]}.{key}".lstrip(".") for m in modules for key, value in vars(m).items()
            if isinstance(value, _NUMBERS) and key not in _OTHERS and not key.startswith("_")
        ]  # fmt: skip
        self._values = [place[key] for place, key in self._places]
        self._hooks = [(f"{paths[id(m)]}.{key}".lstrip("."), vars(m)[key]) for m in modules for key in _HOOKS]
        self._hook_counts = [len(hooks) for _, hooks in self._hooks]
        self._tables = [
            (paths[id(m)], table) for m in modules for table in (m._modules, m._parameters) if table
        ]  # fmt: skip
        self._members = [list(dict.values(table)) for _, table in self._tables]
        self._parameters = list(self._model.named_parameters())
        with DisableTorchFunctionSubclass():
            self._followed = self._look_at_parameters()

    def _look_at_parameters(self) -> list[tuple[bool, int, int]]:
        return [
            (p.requires_grad, len(p._backward_hooks or ()), len(getattr(p, "_post_accumulate_grad_hooks", None) or ()))
            for _, p in self._parameters
        ]

    def find(self) -> str:
        """Return what changed, for people; empty if nothing did."""
        now = [place.get(key) for place, key in self._places]
        if now != self._values:
            return next(
                repr(path) for path, one, other in zip(self._paths, now, self._values, strict=True) if one != other
            )
        return self.refusal() or ""

    def refusal(self) -> str | None:
        """Say which change no graph can follow; None without one."""
        for (path, hooks), count in zip(self._hooks, self._hook_counts, strict=True):
            if len(hooks) > count:
                return f"a hook was registered after tracing ({path})"
        for (path, table), members in zip(self._tables, self._members, strict=True):
            if not _is_same(list(dict.values(table)), members):
                return f"a module or a parameter of {path or 'the model'!r} was added, removed or replaced after tracing"
        with DisableTorchFunctionSubclass():
            now = self._look_at_parameters()
        if now != self._followed:
            for (path, _), one, other in zip(self._parameters, now, self._followed, strict=True):
                if one[0] != other[0]:
                    return f"requires_grad of parameter {path!r} is {one[0]} now, and was {other[0]} when it was traced"
                if one[1] > other[1] or one[2] > other[2]:
                    return f"a hook was registered on parameter {path!r} after tracing"
        return None


def _is_same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(_is, one, other))


def _is(one: Any, other: Any) -> bool:
    return one is other
