"""Contestants run in processes of their own, one at a time; one that fails leaves the others alone."""

import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rdukit_bench.comparisons.contestants import Contestants

from rdukit.errors import RuntimeFault
from support import shows

pytestmark = shows("bench")

#: Everybody writes down when it worked, and may break at a call.
MODULE = """
import os, time, torch
from rdukit_bench.comparisons.contestant import ContestantCalls

def worker(name, log, breaks_at=0, how="raise", seconds=0.01):
    print("noise on stdout")
    calls = [0]
    def call():
        calls[0] += 1
        if calls[0] == breaks_at:
            if how == "kill":
                os.kill(os.getpid(), 9)
            raise ValueError("no more\\nof this")
        began = time.monotonic()
        time.sleep(seconds)
        with open(log, "a") as out:
            print(name, began, time.monotonic(), file=out)
        return torch.arange(3) + calls[0]
    return ContestantCalls({"call": call}, {"pid": os.getpid(), "loss": 0.5})

def refuses():
    raise ImportError("no such peer")
"""


@pytest.fixture
def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Contestants]:
    (tmp_path / "side_for_test.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with Contestants(tmp_path) as made:
        yield made


def start(sides: Contestants, tmp_path: Path, name: str, **more: object) -> None:
    assert sides.start(name, "side_for_test:worker", name=name, log=str(tmp_path / "log"), **more)


@pytest.mark.long
def test_sides_work_in_turn_and_never_at_once(sides: Contestants, tmp_path: Path) -> None:
    start(sides, tmp_path, "a")
    start(sides, tmp_path, "b")
    assert sides.facts["a"]["loss"] == 0.5
    assert len({sides.facts["a"]["pid"], sides.facts["b"]["pid"], os.getpid()}) == 3
    (tmp_path / "log").write_text("")
    timings = sides.measure({"a": ("a", "call"), "b": ("b", "call")}, 3, sample_s=0.001, warmup=0)
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [name for name, _, _ in lines] == ["a", "b"] * 4
    assert all(float(left[2]) <= float(right[1]) for left, right in itertools.pairwise(lines))
    # It slept: the clock went on, the processor did not work.
    assert timings["a"].median_s >= 0.01 > timings["a"].body("s")["cpu_median"]


@pytest.mark.long
def test_a_side_that_fails_is_left_out_with_its_reason(sides: Contestants, tmp_path: Path) -> None:
    for name, more in {"good": {}, "raises": {"breaks_at": 4}, "dies": {"breaks_at": 5, "how": "kill"}}.items():
        start(sides, tmp_path, name, **more)
    assert not sides.start("absent", "side_for_test:refuses")
    places = {name: (name, "call") for name in ("good", "raises", "dies", "absent")}
    timings = sides.measure(places, 7, sample_s=0.001, warmup=1)
    assert list(timings) == ["good"] and len(timings["good"].samples_s) == 7
    assert sides.failed == {
        "raises": "ValueError: no more", "dies": "killed by SIGKILL", "absent": "ImportError: no such peer",
    }  # fmt: skip
    with pytest.raises(RuntimeFault, match="killed by SIGKILL"):
        sides.value(("dies", "call"))


def test_what_a_call_returns_comes_over(sides: Contestants, tmp_path: Path) -> None:
    start(sides, tmp_path, "a")
    assert torch.equal(sides.value(("a", "call")), torch.tensor([1, 2, 3]))


def test_no_process_outlives_its_comparison(sides: Contestants, tmp_path: Path) -> None:
    start(sides, tmp_path, "a", seconds=60)
    pid = int(sides.facts["a"]["pid"])
    former = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt), sides:
            sides.time(("a", "call"), 1)
    finally:
        signal.signal(signal.SIGALRM, former)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()


def interrupt(number: int, frame: object) -> None:
    """As Ctrl-C does."""
    raise KeyboardInterrupt
