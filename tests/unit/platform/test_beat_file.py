"""The file by which container engines see that scheduler and worker are not stuck."""

import os
import time
from pathlib import Path

import pytest

from rdukit_platform.heartbeat_file import STUCK_S, HeartbeatFile, main
from support import shows

pytestmark = shows("containers", "kubernetes")


def test_a_process_that_touches_its_file_is_well_and_one_that_stopped_doing_so_is_stuck(tmp_path: Path) -> None:
    beats, now = HeartbeatFile(tmp_path, "worker"), time.time()
    assert "does not exist" in (beats.why_not(now) or "")
    beats.touch()
    assert beats.why_not(now) is None
    os.utime(beats.path, (now - STUCK_S - 5, now - STUCK_S - 5))
    assert "35 s ago" in (beats.why_not(now) or "")
    beats.touch()
    assert beats.why_not(now) is None
    beats.remove()
    beats.remove()
    assert not list(tmp_path.iterdir())


def test_a_disk_that_takes_no_file_does_not_stop_the_work(tmp_path: Path) -> None:
    HeartbeatFile(tmp_path / "missing", "worker").touch()


def test_the_probe_ends_with_0_only_for_what_beats_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path))
    (tmp_path / "run").mkdir()
    HeartbeatFile(tmp_path / "run", "scheduler").touch()
    assert main(["scheduler"]) == 0
    assert main(["worker"]) == 1
    assert "worker@" in capsys.readouterr().err
    assert main(["gateway"]) == 2
