"""Run-time scalars of a loaded PEF, which a run's update uses.

Precedence, highest first: ``hyperparam_dict`` of the run, ``clip_grad_norm_`` since the last update, ``param_groups``
of the optimizers that were passed to ``trace_graph``, and the values that were compiled in.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rdukit.errors import InvalidArgument, PefMismatch, suggest
from rdukit.pef.model import Pef
from sambaflow.samba.optim.base import DeviceOptimizer
from sambaflow.sessions.updates import clipped_together

logger = logging.getLogger(__name__)

#: Scalars that a program may pass to ``run`` by the last word of their names. A PEF that lacks one ignores it: programs
#: share one dict across models. Source: SDK reference 6.2; the vendor's tutorials pass momentum and p.
WORDS: Final = frozenset(
    {"lr", "momentum", "weight_decay", "beta1", "beta2", "eps", "lr_decay", "nesterov", "max_grad_norm", "p"}
)
#: Internal scalars of the vendor, which the emulation lacks. Source: SDK reference 6.2.
_INTERNAL: Final = ("strnd_seed", "dp_scale_factor")
#: Names in other libraries → the corresponding scalar. Source: a public LSTM program passes its ``opt_params`` with
#: ``learning_rate``, equal to the ``lr`` of its optimizer, which has no effect.
_MEANT: Final = {
    "learning_rate": "lr", "learning-rate": "lr", "lrate": "lr", "wd": "weight_decay", "decay": "weight_decay",
    "epsilon": "eps", "dropout": "p", "betas": "beta1", "clip_grad_norm": "max_grad_norm",
}  # fmt: skip


class RunScalars:
    """The scalars of a run, by name.

    Args:
        rates: names of dropout rates, which ``p`` sets.
    Raises:
        PefMismatch: an optimizer differs from the compiled one in values that a run cannot change.
    """

    def __init__(self, pef: Pef, optimizers: Sequence[DeviceOptimizer], rates: Sequence[str]) -> None:
        self._compiled = dict(pef.hyperparameters)
        self._optimizers = tuple(optimizers)
        self._rates = frozenset(rates)
        self._maximized = frozenset(label for graph in pef.signature.values() for label in graph.get("maximize", ()))
        #: Parameters that are clipped together → their scalar.
        self._clipped = clipped_together(pef)
        #: Scalar of ``max_grad_norm`` → the norm that ``clip_grad_norm_`` has set for the next update.
        self._asked: dict[str, float] = {}
        #: Values of the groups that determine their updates → the resulting scalars.
        self._values: tuple[Any, ...] = ()
        self._followed: Mapping[str, float] = self._compiled
        #: The last dict of a run and its resolved scalars: programs pass the same dict every step.
        self._cache: tuple[dict[str, Any], Mapping[str, float], Mapping[str, float]] | None = None
        self._told: set[str] = set()
        #: The parameters of each group when it was traced.
        self._parameters = [list(group["params"]) for optimizer in optimizers for group in optimizer.param_groups]
        try:
            self.follow()
        except InvalidArgument as cause:
            raise PefMismatch(cause.message) from cause

    def resolve(self, given: Mapping[str, Any] | None, has_update: bool) -> Mapping[str, float]:
        """Return the scalars of a run; the same object while nothing changes.

        Raises:
            InvalidArgument: ``given`` has an unknown key or a value that is not a number, or a group has changed in a
                value that a run cannot change.
        """
        base = self.follow() if has_update else self._followed
        if has_update and self._asked:
            base, self._asked = {**base, **self._asked}, {}
        if not given:
            return base
        if self._cache is not None and self._cache[0] == given and self._cache[1] is base:
            return self._cache[2]
        resolved = self._override(base, given, has_update)
        self._cache = (dict(given), base, resolved)
        return resolved

    def follow(self) -> Mapping[str, float]:
        """Return the current scalars of the optimizers' groups."""
        values = tuple(
            (optimizer.max_grad_norm, *map(optimizer.values_of, optimizer.param_groups))
            for optimizer in self._optimizers
        )
        if values != self._values:
            self._followed = self._scalars_now()
            self._values = values
        return self._followed

    def set_rates(self, rates: Mapping[str, float]) -> None:
        """Set dropout rates from the program's modules, by the names of their scalars."""
        self._compiled.update(rates)
        self._followed = self._scalars_now()

    def clip_next(self, names: frozenset[str], max_norm: float, is_pending: bool) -> None:
        """Clip to ``max_norm`` in the next update, as ``clip_grad_norm_`` of the parameters ``names`` requests.

        Raises:
            InvalidArgument: the PEF does not clip these together, or the update has run already.
        """
        scalar = self._clipped.get(names)
        if scalar is None and math.isinf(max_norm):
            return  # a program that only computes the norm
        if scalar is None:
            compiled = " or ".join(f"{len(group)} parameters" for group in self._clipped) or "none"
            raise InvalidArgument(
                f"clip_grad_norm_ of {len(names)} parameters does not reach the device: the PEF clips {compiled} "
                "together; pass max_grad_norm to the optimizers of these parameters, and compile again"
            )
        if not is_pending and max_norm != self.follow()[scalar]:
            raise InvalidArgument(
                f"clip_grad_norm_ to {max_norm:g} comes after the update, which clipped to {self.follow()[scalar]:g}; "
                "run section_types=['fwd', 'bckwd'] before it and ['gradnorm', 'opt'] after it, or set max_grad_norm "
                "of the optimizer"
            )
        if is_pending:
            self._asked[scalar] = max_norm

    def _scalars_now(self) -> dict[str, float]:
        found = dict(self._compiled)
        norms: dict[str, float | None] = {}
        index = 0
        for optimizer in self._optimizers:
            for position, group in enumerate(optimizer.param_groups):
                label = f"{optimizer.kind_of(group)}{index}"
                where = f"param_groups[{position}] of {type(optimizer).__name__}"
                self._check_parameters(index, group["params"], where)
                index += 1
                if f"{label}.lr" not in found:
                    raise InvalidArgument(
                        f"{where} is {label!r} now, but the PEF was compiled with "
                        f"{', '.join(sorted(self._labels()))}; compile again with these options"
                    )
                if bool(group.get("maximize")) != (label in self._maximized):
                    raise InvalidArgument(f"maximize of {where} differs from the compile; compile again to change it")
                self._set_scalars(found, label, optimizer.scalars_of(group), where)
                norms[label] = optimizer.norm_of(group)
        if index and index != len(self._labels()):
            raise InvalidArgument(
                f"the optimizers have {index} groups, but the PEF was compiled with {len(self._labels())}; compile "
                "again with these groups"
            )
        self._set_norms(found, norms)
        return found

    def _check_parameters(self, index: int, now: Sequence[Any], where: str) -> None:
        before = self._parameters[index : index + 1]
        if before and list(map(id, before[0])) != list(map(id, now)):
            raise InvalidArgument(
                f"the parameters of {where} have changed since it was traced, but the PEF updates the compiled ones; "
                "compile and trace again with these groups, or set lr of a group to 0 to freeze it"
            )

    def _set_scalars(self, found: dict[str, float], label: str, scalars: Mapping[str, float], where: str) -> None:
        for name, value in scalars.items():
            if f"{label}.{name}" not in found:
                raise InvalidArgument(f"{name} of {where} was not compiled in; compile again to switch it on")
            found[f"{label}.{name}"] = value
        if "nesterov" not in scalars and f"{label}.nesterov" in found:
            found[f"{label}.nesterov"] = 0.0

    def _set_norms(self, found: dict[str, float], norms: Mapping[str, float | None]) -> None:
        """Set ``max_grad_norm``; groups that were compiled with the same norm are clipped together."""
        together: dict[float, set[float | None]] = {}
        for label, norm in norms.items():
            compiled = self._compiled.get(f"{label}.max_grad_norm")
            if compiled is None:
                if norm is not None:
                    raise InvalidArgument(
                        f"max_grad_norm={norm:g} of optimizer group {label} was not compiled in; pass it to the "
                        "optimizer before compile"
                    )
                continue
            together.setdefault(compiled, set()).add(norm)
            found[f"{label}.max_grad_norm"] = float("inf") if norm is None else norm
        if any(len(asked) > 1 for asked in together.values()):
            raise InvalidArgument(
                "groups compiled with one max_grad_norm are clipped together, but their values differ now; give all "
                "of them one value, or compile again"
            )

    def _labels(self) -> set[str]:
        return {name.removesuffix(".lr") for name in self._compiled if name.endswith(".lr")}

    def _override(self, base: Mapping[str, float], given: Mapping[str, Any], has_update: bool) -> Mapping[str, float]:
        resolved, used = dict(base), set()
        for key in base:
            word = "p" if key in self._rates else key.rpartition(".")[2]
            name = key if key in given else word
            if name in given and (name == key or word in WORDS):
                used.add(name)
                resolved[key] = _number(name, given[name])
        for key in given:
            if key not in used:
                self._check_unused(str(key), given[key], resolved, has_update)
        return resolved

    def _check_unused(self, key: str, value: Any, base: Mapping[str, float], has_update: bool) -> None:
        """Ignore a key without a scalar in the PEF, with a single warning; refuse unknown words."""
        if key.startswith(_INTERNAL):
            return
        if key in WORDS:
            if (has_update or key == "p") and value and key not in self._told:
                self._told.add(key)
                logger.warning("hyperparam_dict[%r] has no effect: the PEF has no such scalar", key)
            return
        meant = _MEANT.get(key)
        now = {number for name, number in base.items() if name.rpartition(".")[2] == meant}
        if meant is not None and isinstance(value, int | float) and now == {float(value)}:
            if key not in self._told:
                self._told.add(key)
                logger.warning(
                    "hyperparam_dict[%r] has no effect: the scalar is called %r, and has this value", key, meant
                )
            return
        known = [*base, *WORDS]
        hint = suggest(key, [meant], is_sure=True) if meant else suggest(key, known)
        raise InvalidArgument(
            f"hyperparam_dict has no scalar {key!r}; expected {', '.join(sorted(WORDS))}, or one of the PEF: "
            f"{', '.join(sorted(base)) or 'none'}.{hint}"
        )


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as cause:
        raise InvalidArgument(
            f"hyperparam_dict[{name!r}] is {value!r}; expected a number, or a tensor of one element"
        ) from cause
