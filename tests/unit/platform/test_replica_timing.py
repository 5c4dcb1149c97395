"""What a replica says of its times in an answer, told as spans of the call."""

import pytest

from rdukit.telemetry.spans import begin_span, collecting
from rdukit_platform.api.replica_timing import read_batch, read_timing, tell_timing
from support import shows

pytestmark = shows("observability", "endpoint calls", "traces")

TRACED = 'queue;dur=0.250, compute;dur=1.5, load;dur=900, batch;dur=0.05;desc="requests=2 rows=3 most=8 own=1"'


@pytest.mark.parametrize(
    ("header", "parts"),
    [
        ("queue;dur=0.250, compute;dur=1.5, load;dur=900, compile;dur=0", [("queue", 0.25), ("compute", 1.5)]),
        (TRACED, [("queue", 0.25), ("batch", 0.05), ("compute", 1.5)]),
        ("compute;dur=1e99, queue;dur=-3", []),
        ("compute;dur=7" + ",x" * 100_000, [("compute", 7.0)]),
        ("", []),
    ],
)
def test_only_queue_batch_and_compute_are_parts_of_a_call(header: str, parts: list[tuple[str, float]]) -> None:
    assert read_timing(header) == parts


def test_a_batch_is_told_by_its_counts_and_by_nothing_else() -> None:
    with collecting() as found:
        tell_timing(begin_span("replica"), TRACED)
    batch = {"rdukit.batch.requests": 2, "rdukit.batch.rows": 3, "rdukit.batch.most_rows": 8, "rdukit.rows": 1}
    told = {"rdukit.told_by": "replica"}
    assert [span.attributes for span in found] == [told, told | batch, told | batch]
    assert read_batch('batch;dur=1;desc="secret=7 rows=99999999999 most=x requests=4"') == {"rdukit.batch.requests": 4}


def test_no_part_begins_before_the_call_or_ends_after_now() -> None:
    with collecting() as found:
        call = begin_span("replica")
        tell_timing(call, "queue;dur=999999999, compute;dur=999999999")
    assert [span.name for span in found] == ["queue", "compute"]
    assert all(span.parent_id == call.context.span_id and span.start_ns >= call.start_ns for span in found)
