"""Gradients and updates of a loaded PEF, checked against the meaning of a plain PyTorch loop.

In torch ``backward`` adds to gradients until ``zero_grad``, and an update reads them. On the device a backward replaces
the gradients of the one before, unless the PEF was compiled to accumulate. Runs in which the two differ are refused.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import torch

from rdukit.errors import InvalidArgument, UnknownTensor
from rdukit.pef.model import Pef, SectionType, SymbolKind

if TYPE_CHECKING:
    from rdukit_runtime.engine.program import LoadedProgram

#: Section types that read gradients.
READS_GRADIENTS: Final = frozenset({SectionType.GRADNORM, SectionType.OPT})


class Updates:
    """A PEF's backwards and updates since it was loaded.

    States: no gradients → backward → gradients → update; ``zero_grad`` drops gradients until the next backward.
    """

    def __init__(self, pef: Pef, program: "LoadedProgram") -> None:
        self._pef = pef
        self._program = program
        #: Flags of graphs that accumulate: 0 if the next backward begins a new sum.
        self._flags = [f"{name}__accumulating" for name in pef.graphs if f"{name}__accumulating" in pef.symbols]
        #: Clipped parameter → symbols of its gradient before it is clipped.
        self._unclipped = _find_unclipped(pef)
        #: Whether a backward has run since the gradients were dropped.
        self.has_gradients = False
        #: Whether gradients were dropped since the last backward.
        self._is_forgotten = False
        #: Parameters with a gradient, and those of them whose gradient was dropped while others' were not.
        self._with_gradient = {
            name for graph in pef.graphs.values() for name in graph.gradients
            if pef.symbols[name].kind is SymbolKind.PARAMETER
        }  # fmt: skip
        self._forgotten: set[str] = set()
        #: Backwards since the last update, or since gradients were dropped.
        self.backwards = 0
        #: Sections of the last backward that have run: a backward may run section by section.
        self._ran: frozenset[int] = frozenset()
        #: Updates since the PEF was loaded.
        self.count = 0

    def check(self, backward: frozenset[int], has_update: bool, is_whole_step: bool) -> None:
        """Refuse a run whose update would read other gradients than torch's.

        Args:
            backward: the backward sections that run.
        Raises:
            InvalidArgument: several backwards precede one update without accumulation, or none has run since
                ``zero_grad``.
        """
        if self._forgotten and backward and self._flags and not is_whole_step:
            raise InvalidArgument(
                f"zero_grad() cleared {len(self._forgotten)} of {len(self._with_gradient)} parameters, but the device "
                "clears all gradients or none; call zero_grad() of all optimizers before this backward"
            )
        if not has_update:
            return
        if self._forgotten and not backward:
            raise InvalidArgument(
                f"zero_grad() cleared gradients of {sorted(self._forgotten)[0]!r} and others after the last backward, "
                "but the update needs those of all parameters; call it before the backward"
            )
        if self._is_forgotten and not backward:
            raise InvalidArgument(
                "the update has no gradients: zero_grad() came after the last backward; run 'bckwd' before 'opt', or "
                "call zero_grad() before the backward"
            )
        made = self.backwards + self._begins(backward)
        if made > 1 and not is_whole_step and not self._flags:
            raise InvalidArgument(
                f"{made} backward passes ran before this update, but the device keeps only the gradients of the last "
                "one; "
                f"compile with --grad-accumulation-steps {made} to add them up, or call optimizer.zero_grad() before "
                "the last backward to drop the others"
            )

    def note(self, backward: frozenset[int], has_update: bool) -> None:
        """Record the backward sections of a run, and whether it updates."""
        if backward:
            self.has_gradients, self._is_forgotten = True, False
            self._forgotten.clear()
            begins = self._begins(backward)
            self.backwards += begins
            self._ran = backward if begins else self._ran | backward
        if has_update:
            self.backwards = 0
            self.count += 1

    def _begins(self, backward: frozenset[int]) -> bool:
        """Return whether these sections start a new backward instead of continuing the last one."""
        return bool(backward) and (not self.backwards or bool(backward & self._ran))

    def forget_gradients(self, names: Iterable[str]) -> None:
        """Drop gradients of parameters, as ``zero_grad`` does: ``parameter.grad`` becomes None.

        New sums begin once the gradients of all parameters are dropped.
        """
        if not self.has_gradients:
            return
        self._forgotten.update(self._with_gradient.intersection(names))
        if self._forgotten == self._with_gradient:
            self._forgotten.clear()
            self.has_gradients, self._is_forgotten, self.backwards = False, True, 0
            for flag in self._flags:
                self._program.write(flag, torch.zeros(()))

    def gradient_now(self, name: str) -> torch.Tensor | None:
        """Return a copy of a parameter's gradient; None if no backward has computed one since ``zero_grad``."""
        if not self.has_gradients or name not in self._pef.symbols or name in self._forgotten:
            return None
        try:
            return self.gradient_of(name)
        except UnknownTensor:
            return None

    def gradient_of(self, name: str) -> torch.Tensor | None:
        """Return the gradient of the last backward, clipped if an update has clipped it; None if the parameter gets
        none.

        Raises:
            UnknownTensor: backward has not run, or the PEF has no such gradient.
        """
        parts = self._unclipped.get(name)
        if not parts or not self.backwards:
            return self._program.gradient(name)
        dtype = getattr(torch, self._program.symbol(name).host_dtype)
        total: torch.Tensor = torch.stack([self._program.read(part).to(torch.float32) for part in parts]).sum(0)
        return total.to(dtype)

    def replace_gradient(self, name: str, value: Any) -> None:
        """Handle ``parameter.grad = value`` for a parameter without a gradient on the host.

        Raises:
            InvalidArgument: the device has a gradient, which ``value`` would not replace.
        """
        from sambaflow.samba.nn.gradient import DeviceGradient

        if not self.has_gradients or name not in self._pef.symbols or isinstance(value, DeviceGradient):
            return
        if value is None:
            self.forget_gradients([name])
            return
        raise InvalidArgument(
            f"the gradient of {name!r} is on the device, and assigning .grad does not reach it; set the output's "
            "sn_grad before 'bckwd', or use parameter.register_hook before compile"
        )


def clipped_together(pef: Pef) -> dict[frozenset[str], str]:
    """Return the parameters of each gradnorm section, with the scalar to whose value it clips their joint norm."""
    return {
        frozenset(name.removesuffix("__grad_clipped") for name in section.outputs): (
            f"{section.name.removeprefix('gradnorm_')}.max_grad_norm"
        )
        for section in pef.sections
        if section.type is SectionType.GRADNORM
    }


def section_kinds(pef: Pef, sections: Iterable[int]) -> tuple[bool, frozenset[int], bool]:
    """Return whether ``sections`` include forward ones, their backward ones, and whether they include updating ones."""
    types = {number: pef.sections[number].type for number in sections}
    found = set(types.values())
    backward = frozenset(number for number, type_ in types.items() if type_ is SectionType.BCKWD)
    return SectionType.FWD in found, backward, bool(found & READS_GRADIENTS)


def _find_unclipped(pef: Pef) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for section in pef.sections:
        if section.type is SectionType.GRADNORM:
            for name in (output.removesuffix("__grad_clipped") for output in section.outputs):
                own = f"{name}__grad"
                found[name] = [s for s in section.inputs if s == own or s.startswith(f"{own}_")]
    return found
