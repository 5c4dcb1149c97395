"""Base of SambaFlow's optimizers: parameters by name, groups for the compiler, state on the device."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

import torch
from torch import nn

from rdukit.errors import CompileError, InvalidArgument, suggest
from rdukit_compiler import STATES, OptimizerGroup
from sambaflow.samba.nn.gradient import host_gradients
from sambaflow.sessions import current_session, is_loaded

#: torch's methods, unwrapped from their guard against torch.compile, whose import takes over a second.
_add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
_state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
_load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)

#: Keywords for torch's implementation of an update on the host, and the vendor's placement hints. They do not change
#: results. Source of the vendor's: SDK reference 9.
_WITHOUT_EFFECT: Final = frozenset({"foreach", "fused", "capturable", "fp32_params", "argin_region_name"})
#: Options that change the update and that the device lacks → the value that switches them off.
_UNSUPPORTED: Final = {"dampening": 0, "differentiable": False}


class DeviceOptimizer(torch.optim.Optimizer):
    """Mix-in for torch optimizers, listed before torch's class, which connects them to the device.

    On the host ``step`` works as in torch. Once the optimizer was passed to ``trace_graph``, the device updates the
    parameters: runs follow ``param_groups``, and ``step`` without gradients of the host is refused.
    """

    #: Compiler's name of the update.
    kind: str
    #: Keys of a parameter group that determine the update.
    watched: ClassVar[tuple[str, ...]]
    max_grad_norm: float | None = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as torch does.

        Raises:
            InvalidArgument: the device does not support an option of the group, or the optimizer is on the device.
        """
        if self._is_on_device():
            raise InvalidArgument(
                "add_param_group was called after trace_graph: the PEF updates only the groups from the compile; add "
                "the group before samba.session.compile and before trace_graph"
            )
        _add_param_group(self, param_group)
        self.kind_of(self.param_groups[-1])
        if (loaded := current_session().loaded) is not None:
            loaded.optimizers.note_rival(self, loaded.state)

    @property
    def state(self) -> Any:
        """torch's states by parameter: the device's, if it has updated them. The next update uses changes."""
        if self._is_on_device():
            current_session()._loaded().optimizers.show(self)
        return self.host_states

    @state.setter
    def state(self, states: Any) -> None:
        if "state" in self.__dict__ and self._is_on_device():
            current_session()._loaded().optimizers.show(self)
        self.__dict__["state"] = states

    @property
    def host_states(self) -> Any:
        """The host's copies of the states."""
        return self.__dict__["state"]

    def step(self, closure: Any = None) -> Any:
        """Update the host's parameters from the host's gradients, as torch does; without gradients, it has no effect.

        Raises:
            InvalidArgument: the gradients are on the device.
        """
        if self._has_device_gradients() and not self.has_host_gradients():
            raise InvalidArgument(
                f"{type(self).__name__}.step() does not reach the device, which updates its parameters in the 'opt' "
                "section; remove the call: samba.session.run(…) performs a whole step, or pass section_types=['opt'] "
                "to "
                "update after section_types=['fwd', 'bckwd']"
            )
        with host_gradients():
            return super().step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of host and device; each run starts from new ones anyway."""
        if self._is_on_device():
            names = (parameter.sn_name for group in self.param_groups for parameter in group["params"])
            current_session()._loaded().updates.forget_gradients(names)
        with host_gradients():
            super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state dict, with the device's states if the device has updated them since."""
        if self._is_on_device():
            current_session()._loaded().optimizers.show(self)
        found: dict[str, Any] = _state_dict(self)
        return found

    def load_state_dict(self, state_dict: Any) -> None:
        """Load a state dict as torch does; the device gets the states, and the next run follows the groups.

        Raises:
            InvalidArgument: its groups differ from the compiled ones in values that a run cannot change.
        """
        if self._is_on_device():
            current_session()._loaded().optimizers.show(self)  # so that a later read does not replace the loaded states
        _load_state_dict(self, state_dict)
        if self._is_on_device():
            current_session()._loaded().load_states(self)

    def kind_of(self, group: Mapping[str, Any]) -> str:
        """Return the compiler's name of a group's update.

        Raises:
            InvalidArgument: the device does not support an option of the group.
        """
        changing = sorted(key for key, off in _UNSUPPORTED.items() if group.get(key, off) != off)
        if changing:
            raise InvalidArgument(
                f"{type(self).__name__} does not support {', '.join(changing)} on the device; leave it out"
            )
        return self.kind

    def scalars_of(self, group: Mapping[str, Any]) -> dict[str, float]:
        """Return the run-time scalars of a parameter group, by the compiler's names."""
        raise NotImplementedError

    def values_of(self, group: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the current values that determine a group's update, as plain numbers; they are compared before each
        run.
        """
        numbers = [_number(group[key]) for key in self.watched]
        return (*numbers, group.get("max_grad_norm"), list(map(id, group["params"])))

    def norm_of(self, group: Mapping[str, Any]) -> float | None:
        """Return the norm to which a group's gradients are clipped; None if they are not."""
        norm = group.get("max_grad_norm", self.max_grad_norm)
        return None if norm is None else float(norm)

    def device_groups(self, first_index: int) -> tuple[OptimizerGroup, ...]:
        """Return this optimizer's groups for the compiler, numbered from ``first_index``."""
        made: list[OptimizerGroup] = []
        for offset, group in enumerate(self.param_groups):
            names = []
            for parameter in group["params"]:
                name = getattr(parameter, "sn_name", "")
                if not name:
                    raise CompileError(
                        "the optimizer holds a parameter that was not converted; call samba.from_torch_model_(model) "
                        "on the model before compile and trace"
                    )
                if parameter.requires_grad:
                    names.append(name)
            made.append(
                OptimizerGroup(
                    self.kind_of(group), first_index + offset, tuple(names), self.scalars_of(group),
                    self.norm_of(group), bool(group.get("maximize")),
                )
            )  # fmt: skip
        return tuple(made)

    def named_states(self, first_index: int) -> Iterable[tuple[nn.Parameter, str, str]]:
        """Yield (parameter, key in torch's state, symbol on the device) of every state tensor."""
        for group, compiled in zip(self.param_groups, self.device_groups(first_index), strict=True):
            for parameter in group["params"]:
                if parameter.requires_grad:
                    names = compiled.state_names(parameter.sn_name)
                    for state, symbol in zip(STATES[compiled.kind], names, strict=True):
                        yield parameter, self.host_key(state), symbol

    def cpu(self) -> "DeviceOptimizer":
        """Copy the states to the host, as ``samba.session.to_cpu(optimizer)`` does."""
        current_session().to_cpu(self)
        return self

    def host_key(self, state: str) -> str:
        """Return the key of a state in torch's ``optimizer.state[parameter]``."""
        return state

    def _is_on_device(self) -> bool:
        loaded = current_session().loaded
        return loaded is not None and loaded.optimizers.has(self)

    def _has_device_gradients(self) -> bool:
        """Return whether the device has gradients of the parameters, even if another optimizer was traced."""
        first = next((p for group in self.param_groups for p in group["params"]), None)
        return is_loaded(getattr(first, "sn_name", "")) and current_session()._loaded().updates.has_gradients

    def has_host_gradients(self) -> bool:
        """Return whether a backward on the host has left gradients."""
        with host_gradients():
            return any(parameter.grad is not None for group in self.param_groups for parameter in group["params"])


def torch_options(optimizer: torch.optim.Optimizer, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of a constructor for torch's optimizer, without those that do not change results.

    Raises:
        InvalidArgument: neither torch nor the vendor has a keyword; the message names similar ones.
    """
    cls = type(optimizer)
    known = {name for base in cls.__mro__ for name in _keywords(base)} if given else set()
    known = (known | _WITHOUT_EFFECT) - {"self", "params", "args", "kwargs", "options", "defaults", "keywords"}
    for name in given:
        if name not in known:
            raise InvalidArgument(
                f"{cls.__name__} does not accept keyword {name!r}; expected "
                f"{', '.join(sorted(known))}.{suggest(name, known)}"
            )
    return {name: value for name, value in given.items() if name not in _WITHOUT_EFFECT}


def _keywords(cls: type) -> Iterable[str]:
    made = cls.__dict__.get("__init__")
    return inspect.signature(made).parameters if made is not None and cls is not object else ()


def _number(value: Any) -> Any:
    """Return an immutable scalar or tuple of scalars: lists and tensors are converted."""
    if value.__class__ in (float, int, bool):
        return value
    if isinstance(value, list | tuple):
        return tuple(map(_number, value))
    return float(value)


def plain_parameters(params: Any) -> Any:
    """Return parameters in torch's containers: lists, and groups as dicts."""
    items = list(params)
    if items and isinstance(items[0], Mapping):
        return [{**group, "params": list(group["params"])} for group in items]
    return items


def optimizer_list(optimizers: Any) -> tuple[DeviceOptimizer, ...]:
    """Return one optimizer, a list, a nested list or None, as a tuple.

    Raises:
        CompileError: an item is not such an optimizer.
    """
    if optimizers is None:
        return ()
    if isinstance(optimizers, list | tuple):
        return tuple(item for part in optimizers for item in optimizer_list(part))
    if not isinstance(optimizers, DeviceOptimizer):
        raise CompileError(
            f"{type(optimizers).__name__} is not an optimizer of sambaflow.samba.optim; expected SGD, AdamW, Adam, "
            "Adagrad, SparseAdamW"
        )
    return (optimizers,)


def compiler_groups(optimizers: Any) -> tuple[OptimizerGroup, ...]:
    """Return all groups of a program's optimizers, numbered in order."""
    groups: list[OptimizerGroup] = []
    for optimizer in optimizer_list(optimizers):
        groups.extend(optimizer.device_groups(len(groups)))
    return tuple(groups)
