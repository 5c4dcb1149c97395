"""Counts of one model version: plain numbers on the hot path; the protocol's statistics and metrics are read from them.

Source: Triton's statistics extension and metric names (``nv_inference_*``), which its users' dashboards read.
"""

import time
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

#: Upper bounds of the histogram of request times, in microseconds.
BUCKETS_US: Final = (100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000)


class ModelStatistics:
    """Counts since the version was loaded; durations in microseconds."""

    def __init__(self) -> None:
        self.success = 0
        self.failure = 0
        #: Rows answered; calls of the device.
        self.inferences = 0
        self.executions = 0
        self.request_us = 0
        self.fail_us = 0
        self.queue_us = 0
        self.input_us = 0
        self.infer_us = 0
        self.output_us = 0
        self.last_inference_ms = 0
        #: Rows of a batch -> calls and their microseconds of input, infer, output.
        self.batches: dict[int, list[int]] = {}
        self.histogram = [0] * (len(BUCKETS_US) + 1)

    def count_batch(
        self, requests: int, rows: int, queue_us: int, input_us: int, infer_us: int, output_us: int
    ) -> None:
        """Count a computed batch; ``queue_us`` is the sum over its requests."""
        self.success += requests
        self.inferences += rows
        self.executions += 1
        work = input_us + infer_us + output_us
        self.queue_us += queue_us
        self.request_us += queue_us + work * requests
        self.input_us += input_us * requests
        self.infer_us += infer_us * requests
        self.output_us += output_us * requests
        self.histogram[bisect_left(BUCKETS_US, queue_us // requests + work)] += requests
        batch = self.batches.get(rows)
        if batch is None:
            batch = self.batches[rows] = [0, 0, 0, 0]
        batch[0] += 1
        batch[1] += input_us
        batch[2] += infer_us
        batch[3] += output_us
        self.last_inference_ms = int(time.time() * 1000)

    def count_failed(self, requests: int, microseconds: int = 0) -> None:
        """Count requests that were refused or failed."""
        self.failure += requests
        self.fail_us += microseconds

    def to_json(self, name: str, version: str) -> dict[str, object]:
        """Return an entry of ``model_stats`` in the statistics extension."""
        none = {"count": 0, "ns": 0}
        return {
            "name": name,
            "version": version,
            "last_inference": self.last_inference_ms,
            "inference_count": self.inferences,
            "execution_count": self.executions,
            "inference_stats": {
                "success": _sum(self.success, self.request_us),
                "fail": _sum(self.failure, self.fail_us),
                "queue": _sum(self.success, self.queue_us),
                "compute_input": _sum(self.success, self.input_us),
                "compute_infer": _sum(self.success, self.infer_us),
                "compute_output": _sum(self.success, self.output_us),
                "cache_hit": none,
                "cache_miss": none,
            },
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_input": _sum(count, input_us),
                    "compute_infer": _sum(count, infer_us),
                    "compute_output": _sum(count, output_us),
                }
                for rows, (count, input_us, infer_us, output_us) in sorted(self.batches.items())
            ],
        }

    def triton_metrics(self) -> Mapping[str, int]:
        """Return values of the counters ``nv_inference_<name>``."""
        return {
            "request_success": self.success,
            "request_failure": self.failure,
            "count": self.inferences,
            "exec_count": self.executions,
            "request_duration_us": self.request_us,
            "queue_duration_us": self.queue_us,
            "compute_input_duration_us": self.input_us,
            "compute_infer_duration_us": self.infer_us,
            "compute_output_duration_us": self.output_us,
        }


def _sum(count: int, microseconds: int) -> dict[str, int]:
    return {"count": count, "ns": microseconds * 1000}
