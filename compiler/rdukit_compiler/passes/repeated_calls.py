"""Run a graph's operators on fake tensors, equal calls once: layers that are alike cost little more than one."""

import torch

from rdukit.pef.kernel import rename_references
from rdukit_compiler.ir import Operator
from rdukit_compiler.run_operator import run_operator


class RepeatedCalls:
    """Runs operators; one whose arguments equal an earlier one's gets what that one made.

    One fake tensor stands for all values that torch cannot tell apart without their data. Operators of a model graph
    overwrite nothing, so sharing it is safe. Good for one graph, in one fake mode.
    """

    def __init__(self) -> None:
        #: Description → the tensor that stands for all of that description.
        self._tensors: dict[tuple[object, ...], torch.Tensor] = {}
        #: Operator, arguments and dtype to compute in, tensors by ``id``: those in ``_tensors`` live as long as this.
        self._made: dict[str, tuple[torch.Tensor, ...]] = {}

    def tensor_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that stands for this one."""
        described = (
            tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes(),
            tensor.device, tensor.requires_grad, tensor.is_conj(), tensor.is_neg(),
        )  # fmt: skip
        return self._tensors.setdefault(described, tensor)

    def run(self, operator: Operator, tensors: dict[str, torch.Tensor]) -> None:
        """What ``run_operator`` does; ``tensors`` holds what ``tensor_like`` gave.

        Raises:
            CompileError: torch refuses the operator.
        """
        names = {name: str(id(tensors[name])) for name in operator.inputs}
        args = [rename_references(argument, names) for argument in operator.args]
        kwargs = [(key, rename_references(argument, names)) for key, argument in operator.kwargs.items()]
        call = f"{operator.op} {args!r} {kwargs!r} {len(operator.outputs)} {operator.compute}"
        made = self._made.get(call)
        if made is None:
            run_operator(operator, tensors)
            made = self._made[call] = tuple(self.tensor_like(tensors[name]) for name in operator.outputs)
        tensors.update(zip(operator.outputs, made, strict=True))
