"""Valkey's log as lines of JSON."""

import json

from rdukit_platform.up.valkey import ValkeyLines
from support import shows

pytestmark = shows("observability")

TEXT = b"""\
10488:M 26 Nov 2026 19:38:04.129 # WARNING Memory overcommit must be enabled!
10488:M 26 Nov 2026 19:38:04.129 * Configuration "loaded"

=== VALKEY BUG REPORT START: \xff ===
10488:M 26 Nov 2026 19:38:05.000 - last words"""


def test_lines_that_come_in_pieces_are_objects_with_their_time_and_level() -> None:
    lines = ValkeyLines()
    pieces = [TEXT[at : at + 7] for at in range(0, len(TEXT), 7)]
    told = [json.loads(line) for piece in [*pieces, b""] for line in lines.feed(piece, 1.5)]
    assert [(one["level"], one["message"]) for one in told] == [
        ("WARNING", "WARNING Memory overcommit must be enabled!"),
        ("INFO", 'Configuration "loaded"'),
        ("INFO", "=== VALKEY BUG REPORT START: � ==="),
        ("INFO", "last words"),
    ]
    assert told[0]["ts"] == "2026-11-26T19:38:04.129Z" and told[2]["ts"] == "1970-01-01T00:00:01.500Z"
    assert {one["service"] for one in told} == {"valkey"}
    assert [one["pid"] for one in told] == [10488, 10488, None, 10488]


def test_a_line_without_end_does_not_wait_for_ever() -> None:
    assert sum(len(json.loads(line)["message"]) for line in ValkeyLines().feed(b"a" * 200_000, 0.0)) == 200_000
