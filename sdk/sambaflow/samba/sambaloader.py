"""SambaLoader: a loader whose batches are named SambaTensors. Source: SDK reference 14.1."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rdukit.errors import InvalidArgument
from sambaflow.samba.sambatensor import SambaTensor


class DataLoaderException(InvalidArgument):
    """A batch has a different number of tensors than there are names."""

    code = "data-loader"


class SambaLoader:
    """Wraps an iterable of batches.

    Args:
        loader: yields a tensor, or a list or tuple of tensors, per batch.
        names: names of the batch's tensors, in order; ``batch_dim`` is 0.
        function_hook: maps each batch to the batch to use.
        return_original_batch: yield ``(SambaTensors, original batch)``.
    """

    def __init__(
        self, loader: Iterable[Any], names: Sequence[str], function_hook: Callable[[Any], Any] | None = None,
        return_original_batch: bool = False,
    ) -> None:  # fmt: skip
        self.loader = loader
        self.names = list(names)
        self._hook = function_hook
        self._return_original = return_original_batch

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        for original in self.loader:
            batch = self._hook(original) if self._hook else original
            tensors = list(batch) if isinstance(batch, list | tuple) else [batch]
            if len(tensors) != len(self.names):
                raise DataLoaderException(
                    f"a batch has {len(tensors)} tensors, but SambaLoader got {len(self.names)} names: {self.names}"
                )
            wrapped = [SambaTensor(t, name=n, batch_dim=0) for t, n in zip(tensors, self.names, strict=True)]
            yield (wrapped, original) if self._return_original else wrapped
