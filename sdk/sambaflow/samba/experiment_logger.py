"""Meters and a logger for experiments. Source: SDK reference 3 (only the names are public)."""

import json
from pathlib import Path
from typing import Any

from sambaflow.samba.sambatensor import unwrap


class CountMeter:
    """A meter that counts."""

    def __init__(self, name: str = "count") -> None:
        self.name = name
        self.count = 0

    def update(self, n: int = 1) -> None:
        """Add ``n``."""
        self.count += n

    def reset(self) -> None:
        """Set the meter to zero."""
        self.count = 0

    @property
    def value(self) -> float:
        """The current count."""
        return float(self.count)


class DisplayMeter(CountMeter):
    """A meter of the mean of all values, and the last value."""

    def __init__(self, name: str = "value") -> None:
        super().__init__(name)
        self.sum = self.last = 0.0

    def update(self, value: Any, n: int = 1) -> None:  # type: ignore[override]
        """Add ``value``, the mean of ``n`` samples; a tensor counts as its mean."""
        plain = unwrap(value)
        self.last = float(plain.float().mean()) if hasattr(plain, "float") and hasattr(plain, "dim") else float(plain)
        self.sum += self.last * n
        self.count += n

    def reset(self) -> None:
        super().reset()
        self.sum = self.last = 0.0

    @property
    def value(self) -> float:
        return self.sum / self.count if self.count else 0.0


class AccMeter(CountMeter):
    """A meter of accuracy: predictions [B, C] or [B] against labels [B]."""

    def __init__(self, name: str = "acc") -> None:
        super().__init__(name)
        self.correct = 0

    def update(self, predictions: Any, labels: Any) -> None:  # type: ignore[override]
        """Add a batch."""
        made, wanted = unwrap(predictions), unwrap(labels)
        chosen = made.argmax(-1) if made.dim() > wanted.dim() else made
        self.correct += int((chosen == wanted).sum())
        self.count += wanted.numel()

    def reset(self) -> None:
        super().reset()
        self.correct = 0

    @property
    def value(self) -> float:
        return self.correct / self.count if self.count else 0.0


class Logger:
    """Prints meters, and appends a line of JSON to a file if one is given."""

    def __init__(self, *meters: CountMeter, path: "str | Path | None" = None) -> None:
        self.meters = list(meters)
        self.path = Path(path) if path else None

    def log(self, step: int, **more: Any) -> dict[str, Any]:
        """Print all meters at ``step``; return their values."""
        shown = {"step": step, **{meter.name: meter.value for meter in self.meters}, **more}
        print(", ".join(f"{key}: {value:.4f}" if isinstance(value, float) else f"{key}: {value}"
                        for key, value in shown.items()))  # fmt: skip
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as stream:
                stream.write(json.dumps(shown) + "\n")
        return shown


__all__ = ["AccMeter", "CountMeter", "DisplayMeter", "Logger"]
