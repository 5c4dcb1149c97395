"""Summaries of PEFs that tenants made: of a hostile one, memory and time are bounded, and not this process's."""

import json
import resource
import zipfile
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument, PefCorrupt
from rdukit.pef.file import FORMAT_VERSION, INDEX, Answers, PefSummary, PefTooLarge, read_summary
from rdukit_platform.jobs.pef_summary import SMALL_BYTES, summary_of_file
from support import shows

pytestmark = shows("jobs", "security", "pef")


def write(path: Path, filling: str = "", entries: int = 0) -> Path:
    shape = json.dumps({"outputs": ["logits"]})
    signature = {"forward": {"parameters": ["bias", "weight"]}}
    pef = {"num_tiles": 2, "sections": [], "metadata": {"modelbox": shape}, "signature": signature, "inference": True}
    with zipfile.ZipFile(path, "w") as archive:
        text = json.dumps({"format": list(FORMAT_VERSION), "pef": pef, "filling": "@"}).replace('"@"', filling or "0")
        archive.writestr(INDEX, text)
        for number in range(entries):
            archive.writestr(f"{number:0100}", b"")
    return path


@pytest.mark.parametrize("filling", ["", '"' + "x" * SMALL_BYTES + '"'])
def test_a_small_and_a_large_index_are_read_alike(tmp_path: Path, filling: str) -> None:
    summary = summary_of_file(write(tmp_path / "one.pef", filling), "mallory")
    assert summary == PefSummary(2, False, Answers.ROWS, True, frozenset(("bias", "weight")))


def test_a_large_table_of_contents_is_not_read_here(tmp_path: Path) -> None:
    path = write(tmp_path / "one.pef", entries=SMALL_BYTES // 140)
    with pytest.raises(PefTooLarge):
        read_summary(path, SMALL_BYTES)
    assert summary_of_file(path, "mallory").tiles == 2


def test_a_hostile_index_takes_no_memory_of_this_process(tmp_path: Path) -> None:
    path = write(tmp_path / "one.pef", "[" + "[]," * (20 << 20) + "0]")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidArgument, match="more than 1024 MiB of memory"):
        summary_of_file(path, "mallory")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (64 << 10)


def test_a_large_index_that_is_none_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(PefCorrupt, match="not a readable PEF"):
        summary_of_file(write(tmp_path / "one.pef", "]" * (2 * SMALL_BYTES)), "mallory")
