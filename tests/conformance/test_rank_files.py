"""Files by which a new process finds the ranks of a training, and connections to stores of ranks."""

import os
import socket
import time
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit.files.owned import own_process
from rdukit_runtime.collectives import rank_store
from rdukit_runtime.collectives.meeting import (
    Roster,
    connect_store,
    find_roster,
    remove_ended_launches,
    remove_roster,
    serve_store,
    write_roster,
)
from rdukit_runtime.collectives.replacement import take_place
from support import shows

pytestmark = shows("lost-ranks")


def test_a_damaged_file_of_a_lost_rank_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RDUKIT_DISTRIBUTED_ROSTER", str(tmp_path))
    (tmp_path / "rank-1.json").write_text('{"token": "mine", "addresses": [1]}')
    assert not take_place(1), "with on_loss=fail no file is read"
    monkeypatch.setenv("RDUKIT_DISTRIBUTED_ON_LOSS", "replace")
    assert not take_place(0)
    with pytest.raises(InvalidArgument, match=r"rank-1\.json does not name the ranks of a training"):
        take_place(1)


def test_a_lost_ranks_file_is_refused_if_it_is_no_regular_file_of_this_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RDUKIT_DISTRIBUTED_ROSTER", str(tmp_path))
    file = tmp_path / "rank-1.json"
    os.mkfifo(file)
    with pytest.raises(InvalidArgument, match=r"rank-1\.json does not belong to this user"):
        find_roster(1)
    file.unlink()
    write_roster(2, Roster("mine", {}))
    file.symlink_to("rank-2.json")
    with pytest.raises(InvalidArgument, match=r"rank-1\.json cannot be read"):
        find_roster(1)
    file.unlink()
    write_roster(1, Roster("mine", {}))
    assert find_roster(1) == Roster("mine", {})
    if os.geteuid() == 0:
        os.chown(file, 65534, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 65533)
    with pytest.raises(InvalidArgument, match="a folder that other users cannot write"):
        find_roster(1)


def test_a_rank_that_wakes_and_ends_leaves_the_file_of_the_process_in_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RDUKIT_DISTRIBUTED_ROSTER", str(tmp_path))
    write_roster(1, Roster("mine", {0: ("host", 7), 1: ("host", 9)}))
    remove_roster(1, ("host", 8))
    assert find_roster(1) is not None
    remove_roster(1, ("host", 9))
    assert find_roster(1) is None


def test_the_next_launch_removes_what_killed_ranks_of_ended_launches_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    write_roster(1, Roster("mine", {}))  # of the launch that has started this process
    mark = own_process().mark
    ended = f"{mark.rpartition('-')[0]}-1"
    left = [tmp_path / "run" / name for name in (f"roster-{ended}-0.json", f"rendezvous-{ended}.json")]
    live = [tmp_path / "run" / f"roster-{mark}-{rank}.json" for rank in range(2)]
    other = [tmp_path / "run" / name for name in ("snd.sock", f"roster-{ended.replace(ended[0], 'g')}-0.json")]
    for path in (*left, *live, *other):
        path.touch()
    remove_ended_launches()
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in (*live, *other))
    assert find_roster(1) == Roster("mine", {})


def test_a_launch_removes_unused_rank_files_of_former_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # fmt: skip
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path))
    run = tmp_path / "run"
    run.mkdir()
    left = [run / name for name in ("roster-0123456789abcdef-11.json", "rendezvous-0123456789abcdef.json")]
    other = [run / "rendezvous-alone.json", run / "roster-0123456789abcdef.txt"]
    for path in (*left, *other):
        path.touch()
    remove_ended_launches()
    assert all(path.exists() for path in left), "a rank of a former version may use them"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 40 * 86_400)
    monkeypatch.setattr(time, "clock_gettime", lambda clock: 9.0)
    remove_ended_launches()
    assert sorted(run.iterdir()) == sorted(other)


def test_a_folder_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RDUKIT_DISTRIBUTED_ROSTER", str(tmp_path / "file" / "roster"))
    with pytest.raises(InvalidArgument, match=r"rank-1\.json cannot be written: .*RDUKIT_DISTRIBUTED_ROSTER"):
        write_roster(1, Roster("mine", {}))


def test_a_process_that_accepts_and_never_answers_costs_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_store, "GREETING_S", 0.05)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(RuntimeError, match="does not answer"),
    ):
        connect_store(server.getsockname(), "token")


def test_a_second_training_in_the_folder_of_one_that_runs_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RDUKIT_DISTRIBUTED_ROSTER", str(tmp_path))
    monkeypatch.setenv("RDUKIT_DISTRIBUTED_ON_LOSS", "replace")
    store = serve_store("first")
    write_roster(1, Roster("first", {1: ("127.0.0.1", store.port)}))
    with pytest.raises(InvalidArgument, match=r"belongs to a rank 1 that still runs.*no other training uses"):
        take_place(1)
    write_roster(1, Roster("ended", {1: ("127.0.0.1", store.port)}))
    assert not take_place(1), "another training has this port now"
