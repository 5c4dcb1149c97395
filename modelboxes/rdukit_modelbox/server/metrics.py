"""Prometheus metrics of one box. A registry each, so that tests can have several boxes."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rdukit_modelbox.operations import Operation
from rdukit_modelbox.operations.values import OperationState
from rdukit_serving.models.metrics import ServingCollector
from rdukit_serving.models.repository import Repository


class Metrics:
    """Counts what the box does."""

    def __init__(self, box: str) -> None:
        self.registry = CollectorRegistry()
        labels = {"box": box}
        self._operations = Counter(
            "rdukit_box_operations", "Operations that ended.", ["box", "verb", "state"], registry=self.registry
        )
        self._seconds = Histogram(
            "rdukit_box_operation_seconds", "From request to end, on this host.", ["box", "verb"],
            buckets=(0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800, 7200), registry=self.registry,
        )  # fmt: skip
        gauge = Gauge("rdukit_box_operations_now", "Operations by state.", ["box", "state"], registry=self.registry)
        self._queued = gauge.labels(**labels, state=str(OperationState.QUEUED))
        self._running = gauge.labels(**labels, state=str(OperationState.RUNNING))
        self._rows = Counter(
            "rdukit_box_rows", "Rows answered at once.", ["box"], registry=self.registry
        ).labels(**labels)  # fmt: skip
        self._rows_seconds = Histogram(
            "rdukit_box_rows_seconds", "One synchronous inference request, on this host.", ["box"],
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 30), registry=self.registry,
        ).labels(**labels)  # fmt: skip
        self._box = box

    def add_models(self, repository: Repository) -> None:
        """Add the metrics of the models that ``repository`` serves."""
        self.registry.register(ServingCollector(repository))

    def count_ended(self, operation: Operation) -> None:
        """Count an operation that reached a final state."""
        self._operations.labels(self._box, operation.verb, operation.state).inc()
        self._seconds.labels(self._box, operation.verb).observe(
            max(0.0, (operation.ended_at or operation.created_at) - operation.created_at)
        )

    def count_rows(self, rows: int, seconds: float) -> None:
        """Count a synchronous inference that was answered."""
        self._rows.inc(rows)
        self._rows_seconds.observe(seconds)

    def text(self, operations: list[Operation]) -> bytes:
        """Return the exposition."""
        self._queued.set(sum(o.state is OperationState.QUEUED for o in operations))
        self._running.set(sum(o.state is OperationState.RUNNING for o in operations))
        return generate_latest(self.registry)
