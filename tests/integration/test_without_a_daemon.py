"""Where no daemon listens: programs get a private node or an error, and tools read the database or say so."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rdukit.errors import InvalidArgument, Unavailable
from rdukit_node.cli.output import NodeReply, Reader, connect
from rdukit_node.cli.snfadm import snfadm
from rdukit_node.faults.model import ChangedRows
from rdukit_node.faults.pending import NewRows
from rdukit_node.faults.store import FaultStore
from rdukit_node.private_node import open_lease
from support import shows

pytestmark = shows("node", "snfadm", "tools")


@pytest.fixture(autouse=True)
def private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RDUKIT_NODE", "RDUKIT_LEASE", "RDUKIT_SND_SOCKET", "RDUKIT_PLATFORM", "SF_RNT_TILE_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("arch", "chip"), [("sn10", "sn10"), ("SN30", "sn30"), ("sn40", "sn40l"), (None, "sn30"), ("", "sn30")]
)
def test_without_a_daemon_a_private_node_with_the_program_s_chip_is_made(arch: str | None, chip: str) -> None:
    with open_lease("app", arch=arch, tiles=2, memory_bytes=100) as lease:
        assert lease.kind == "private"
        assert lease.chip.name == chip
        assert lease.tiles == ("/NODE/XRDU_0/RDU_0/TILE_0", "/NODE/XRDU_0/RDU_0/TILE_1")
        assert lease.memory_bytes == 100


def test_a_wanted_daemon_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_NODE", "daemon")
    with pytest.raises(Unavailable, match="rdukit node start"):
        open_lease("app", arch="sn10", tiles=1, memory_bytes=0)
    monkeypatch.setenv("RDUKIT_NODE", "cloud")
    with pytest.raises(InvalidArgument, match="expected"):
        open_lease("app", arch="sn10", tiles=1, memory_bytes=0)


def test_a_health_check_of_no_node_cannot_tell(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path_factory.mktemp("home")))
    result = CliRunner().invoke(snfadm, ["--exit-code", "--json"])
    assert result.exit_code == 2
    assert json.loads(result.stdout)["status"] == "unknown"


def test_without_a_daemon_and_a_database_a_reader_says_so(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path_factory.mktemp("home")))
    with pytest.raises(Unavailable, match="rdukit node start"):
        connect()
    with pytest.raises(Unavailable, match="nor is there a database"):
        Reader(stored=lambda paths, op, arguments: NodeReply({}, 1.0))


def test_without_a_daemon_a_reader_reads_the_database_and_knows_its_age(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("RDUKIT_HOME", str(home))
    (home / "snfm").mkdir()
    (home / "snfm/snfm.db").touch()
    with Reader(stored=lambda paths, op, arguments: NodeReply({"op": op, **arguments}, 12.4)) as reader:
        assert reader.age_s is None
        assert reader.ask("faults", limit=5, since=None) == {"op": "faults", "limit": 5}
        reader.say_age("snfadm")
    said = capsys.readouterr().err
    assert said.startswith("snfadm: no node daemon answers at ")
    assert said.endswith("; this is its database, last written 12 s ago\n")


def test_a_tool_finds_the_state_of_a_node_whose_socket_is_elsewhere(tmp_path: Path) -> None:
    store = FaultStore.open(tmp_path / "state" / "snfm" / "snfm.db")
    rows = [
        {"lease": f"l{number}", "job": f"slurm-{number % 2}", "granted_at": 1, "ended_at": 2} for number in range(4)
    ]
    store.write(NewRows(ChangedRows(), applications=rows), now_ns=1)
    store.close()
    where = ["--socket", str(tmp_path / "elsewhere.sock")]
    assert CliRunner().invoke(snfadm, ["-l", "applications", "--json", *where]).exit_code != 0
    command = ["-l", "applications", "--json", "--job", "slurm-1", *where, "--state", str(tmp_path / "state")]
    found = CliRunner().invoke(snfadm, command)
    assert [row["lease"] for row in json.loads(found.stdout)["applications"]] == ["l3", "l1"]
    refused = CliRunner().invoke(snfadm, ["-l", "inventory", "--job", "slurm-1"])
    assert isinstance(refused.exception, InvalidArgument) and "--job is only for" in refused.exception.message
