"""Tests of programs: device against host. Source: SDK reference 14.6."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from sambaflow.samba.sambatensor import unwrap
from sambaflow.samba.utils.tensorboard_debug import host_outputs
from sambaflow.samba.utils.utils import assert_close, set_seed, trace_graph
from sambaflow.sessions import current_session
from sambaflow.tracing.tracer import flatten_tensors


class TestWithGold:
    """Compares forward on the device with the host, batch by batch.

    Args:
        args: parsed arguments; ``args.pef`` is traced unless a PEF is loaded already. loader: yields batches of
            SambaTensors.
    """

    __test__ = False  # keeps pytest from collecting the class

    def __init__(
        self, args: Any, name: str, model: nn.Module, loader: Iterable[Any], optimizer: Any = None,
        threshold: float = 3e-2,
    ) -> None:  # fmt: skip
        self.args, self.name, self.model, self.loader = args, name, model, loader
        self.optimizer, self.threshold = optimizer, threshold

    def test(self, max_batches: int | None = None) -> int:
        """Compare; return the number of compared batches.

        Raises:
            AssertionError: an output differs by more than the threshold.
        """
        traced: Any = None
        count = 0
        for batch in self.loader:
            if max_batches is not None and count >= max_batches:
                break
            if traced is None:
                traced = self.model.output_tensors if current_session().loaded is not None else trace_graph(
                    self.model, batch, self.optimizer, pef=self.args.pef
                )  # fmt: skip
            device = current_session().run(batch, traced, section_types=["fwd"])
            for output, gold in zip(device, host_outputs(self.model, batch), strict=True):
                assert_close(output, gold, f"{self.name}:{output.sn_name}", threshold=self.threshold)
            count += 1
        return count


def consistency_test(repeats: int = 2, seed: int = 0) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function to be called ``repeats`` times from the same seed; all results must be equal.

    Raises:
        AssertionError: two results differ.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            results = []
            for _ in range(max(repeats, 1)):
                set_seed(seed)
                results.append(function(*args, **kwargs))
            first = [unwrap(t).clone() for t in flatten_tensors(results[0])]
            for number, result in enumerate(results[1:], 2):
                same = [unwrap(t) for t in flatten_tensors(result)]
                equal = len(same) == len(first) and all(map(torch.equal, first, same))
                if not equal or (not first and result != results[0]):
                    raise AssertionError(
                        f"{function.__name__}: call {number} differs from the first call with the same seed"
                    )
            return results[0]

        return checked

    return decorate


__all__ = ["TestWithGold", "consistency_test"]
