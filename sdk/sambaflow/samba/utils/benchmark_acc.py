"""The accuracy report that programs write for benchmarks. Source: SDK reference 7.5."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rdukit.files.atomic import write_json_atomic


class AccuracyReport:
    """Metrics of a run, to be saved as JSON.

    Args:
        val_metrics, train_metrics: name → number. val_accuracy: older programs' only metric.
    """

    def __init__(
        self, val_metrics: Mapping[str, Any] | None = None, train_metrics: Mapping[str, Any] | None = None,
        batch_size: int | None = None, num_iterations: int | None = None, val_accuracy: float | None = None,
        **more: Any,
    ) -> None:  # fmt: skip
        self.val_metrics = dict(val_metrics or {})
        if val_accuracy is not None:
            self.val_metrics.setdefault("acc", val_accuracy)
        self.train_metrics = dict(train_metrics or {})
        self.batch_size = batch_size
        self.num_iterations = num_iterations
        self.more = more

    def to_dict(self) -> dict[str, Any]:
        """Return the values that ``save`` writes."""
        return {
            "val_metrics": self.val_metrics, "train_metrics": self.train_metrics, "batch_size": self.batch_size,
            "num_iterations": self.num_iterations, **self.more,
        }  # fmt: skip

    def save(self, path: "str | Path | None") -> None:
        """Write the report to ``path``, atomically; without a path, do nothing."""
        if path:
            write_json_atomic(Path(path), _plain(self.to_dict()))


def _plain(value: Any) -> Any:
    """Convert tensors and numbers of other libraries to Python's types."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value
