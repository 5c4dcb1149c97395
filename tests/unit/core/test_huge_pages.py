"""Huge pages: which memory is meant, and that what is in it stays."""

import os
from pathlib import Path

from rdukit.system.forks import HUGE_BYTES, collapse_memory, find_private_memory, huge_pages_in
from support import shows

pytestmark = shows("job-boxes")

MAPS = """\
00400000-00600000 r-xp 00000000 08:01 77 /usr/bin/python3
00600000-00c00000 rw-p 00000000 08:01 77 /usr/bin/python3
01000000-01e00000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000200000 rw-s 00000000 00:00 0 shared
7f0000400000-7f0000600000 r--p 00000000 00:00 0
7f0000800000-7f0000c00000 rw-p 00000000 00:00 0
"""


def test_memory_is_meant_that_is_private_written_and_of_no_file() -> None:
    assert find_private_memory(MAPS) == [(0x01000000, 0x01E00000), (0x7F0000800000, 0x7F0000C00000)]


def test_only_whole_huge_pages_count() -> None:
    assert list(huge_pages_in(HUGE_BYTES + 1, 4 * HUGE_BYTES + 5)) == [2 * HUGE_BYTES, 3 * HUGE_BYTES]
    assert list(huge_pages_in(HUGE_BYTES + 1, 2 * HUGE_BYTES)) == []


def test_a_process_keeps_what_it_has(tmp_path: Path) -> None:
    content = os.urandom(8 << 20)
    held = bytearray(content)
    assert collapse_memory() >= 0
    assert held == content
    nothing = tmp_path / "maps"
    nothing.write_text("")
    assert collapse_memory(nothing) == 0
