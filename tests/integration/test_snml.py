"""SNML on a real node: read by everybody, changed with the token, spoken by another language, not hurt by anybody."""

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from rdukit.errors import InvalidArgument, NoResources, NotFound, RdukitError, Unauthenticated, Unavailable
from rdukit_node.settings import NodePaths
from rdukit_node.snml.client import SnmlClient
from rdukit_node.snml.server import SERVICES, start_snml
from rdukit_node.snml.token import read_token
from rdukit_node.snml.watch import MAX_WATCHERS
from support import shows, wait_until
from support.node.daemons import RunningDaemon, environment, running_daemon, start_daemon, stop_daemon

pytestmark = shows("snml")

HERE = Path(__file__).parent
PROTO = HERE.parents[1] / "core/rdukit/proto/snml.proto"
RDU = "/NODE/XRDU_0/RDU_0"


def paths_of(daemon: RunningDaemon) -> NodePaths:
    run = daemon.home / "run"
    return NodePaths(
        daemon.socket, run / "snml.sock", daemon.home / "snfm/snfm.db", daemon.home / "logs/sn.log",
        daemon.home / "logs/snd.log", run / "admin.token",
    )  # fmt: skip


@pytest.fixture(scope="module")
def announcement(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("snml") / "node.json"


@pytest.fixture(scope="module")
def daemon(announcement: Path) -> Iterator[RunningDaemon]:
    with running_daemon("TEST-1", ["--snml-port", "0", "--announce", str(announcement)]) as running:
        yield running


@pytest.fixture(scope="module")
def tcp(daemon: RunningDaemon, announcement: Path) -> str:
    """Where the node listens on TCP."""
    return f"127.0.0.1:{json.loads(announcement.read_text())['snml_port']}"


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[SnmlClient]:
    with SnmlClient(paths=paths_of(daemon)) as connected:
        yield connected


@pytest.fixture
def reader(daemon: RunningDaemon) -> Iterator[SnmlClient]:
    """Somebody who has no token."""
    with SnmlClient(paths=paths_of(daemon), token="") as connected:
        yield connected


def components(root: Any) -> list[str]:
    return [root.comp_name, *(name for child in root.children for name in components(child))]


def test_the_python_client_prefers_the_socket_and_names_the_platform(client: SnmlClient) -> None:
    assert client.target.startswith("unix:")
    reply = client.ask("GetSystemPlatformInfo", request_id="mine")
    assert (reply.platform_name, reply.request_id, list(reply.error_details)) == ("DataScale TEST-1", "mine", [])
    versions = client.ask("GetSystemVersionInfo")
    assert versions.pef and versions.snml and versions.sambaflow and int(versions.fault_log) >= 2
    assert not versions.error_details


def test_the_inventory_is_that_of_the_socket_s(client: SnmlClient, daemon: RunningDaemon) -> None:
    with daemon.connect() as direct:
        rows = direct.call("inventory")["components"]
    assert components(client.ask("GetStaticResource").root) == [row["comp_name"] for row in rows]
    details = client.ask("GetSystemPlatformDetails")
    assert (details.chip, details.max_tiles_per_rdu, details.max_rdus_per_xrdu) == ("sn10", 4, 1)
    assert len(client.ask("GetSystemFaultState")) == len(rows)


def test_a_fault_goes_its_whole_way_over_snml(client: SnmlClient, daemon: RunningDaemon) -> None:
    tile = f"{RDU}/TILE_3"
    made = client.ask("Inject", events=[{"class_name": "tile-excluded", "comp_name": tile}])
    (uuid,) = made.fault_uuids
    (fault,) = [
        reply.fault for reply in client.ask("GetSystemFaults", comp_name=tile) if reply.fault.fault_uuid == uuid
    ]
    assert (fault.fault_type, fault.fault_state, fault.comp_name) == ("FTYPE_TILE_EXCLUDED", "ACTIVE", tile)
    (error,) = [e for e in client.ask("GetSystemErrors", comp_name=tile) if e.err_uuid in made.err_uuids]
    assert error.err_count >= 1 and error.last_timestamp >= error.orig_timestamp > 0
    states = {state.comp_name: state.fault_state for state in client.ask("GetSystemFaultState")}
    assert states[tile] == "FAULTED"
    assert tile in components(client.ask("GetStaticResource").root)
    assert tile not in components(client.ask("GetOnlineResource").root)
    (rdu,) = client.ask("GetRDUOperationalStatus")
    assert (rdu.comp_name, rdu.available_tiles, rdu.is_perfect) == (RDU, 3, False)
    info = {item.comp_name: item for item in client.ask("GetTileInfo").tiles}
    assert (info[tile].health, info[tile].status & 3) == ("Excluded", 2)

    (cleared,) = client.ask("ClearSystemFault", fault_uuids=[uuid])
    if cleared.returned_fault_uuid:  # the cause is still there
        assert "again" in cleared.message
        repaired = client.ask("Repair", comp_name=tile)
        assert list(repaired.cleared_fault_uuids) == [cleared.returned_fault_uuid]
    assert tile in components(client.ask("GetOnlineResource").root)
    assert not client.ask("GetSystemFaults", comp_name=tile)
    history = client.ask("GetSystemFaults", comp_name=tile, include_cleared=True)
    assert all(reply.fault.fault_state == "CLEARED" and reply.fault.cleared_timestamp for reply in history)


def test_one_wrong_fault_does_not_stop_the_others_from_being_cleared(client: SnmlClient) -> None:
    (uuid,) = client.ask("Inject", events=[{"class_name": "tile-excluded", "comp_name": f"{RDU}/TILE_2"}]).fault_uuids
    wrong, right = client.ask("ClearSystemFault", fault_uuids=["nothing", uuid])
    assert wrong.fault_uuid == "nothing" and len(wrong.error_details) == 1
    assert right.fault_uuid == uuid and not right.error_details
    client.ask("Repair", comp_name=f"{RDU}/TILE_2")


def test_a_reset_is_in_the_hang_history(client: SnmlClient) -> None:
    (reply,) = client.ask("ResetRDU", comp_names=[RDU])
    assert (reply.event, reply.outcome, list(reply.error_details)) == ("CHIP_RESET", "SUCCEEDED", [])
    history = client.ask("GetHangRecoveryHistory", comp_name=RDU)
    assert (history[-1].event, history[-1].timestamp) == ("CHIP_RESET", reply.timestamp)


def test_an_application_s_tiles_counters_and_accounting_are_seen(client: SnmlClient, daemon: RunningDaemon) -> None:
    with daemon.connect() as application:
        lease = application.acquire("resnet", 2, 1 << 20, job="job-7")
        held = [tile for tile in client.ask("GetTileInfo").tiles if tile.lease == lease["id"]]
        assert [tile.comp_name for tile in held] == lease["tiles"]
        assert all(tile.application == "resnet" and tile.pid == os.getpid() and tile.status & 8 for tile in held)
        (counted,) = client.ask("GetPerfCounter").applications
        assert (counted.lease, counted.job, list(counted.tiles)) == (lease["id"], "job-7", lease["tiles"])
    deadline = time.monotonic() + 60
    while not (ended := [a for a in client.ask("ListApplications").applications if a.ended_at]):
        assert time.monotonic() < deadline
    assert (ended[0].lease, ended[0].application, len(ended[0].tiles)) == (lease["id"], "resnet", 2)


def test_policies_and_routes_are_read_without_a_token(reader: SnmlClient) -> None:
    assert any(policy.fault_type == "FTYPE_TILE_EXCLUDED" for policy in reader.ask("GetSystemPolicyInfo"))
    routes = reader.ask("GetSystemP2PRoute")  # one RDU: none, and it says so
    assert (list(routes.routes), len(routes.error_details)) == ([], 1)


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("ClearSystemFault", {"fault_uuids": ["x"]}),
        ("ResetRDU", {"comp_names": [RDU]}),
        ("Inject", {"events": [{"class_name": "fan"}]}),
        ("Repair", {"comp_name": RDU}),
    ],
)
def test_every_change_needs_the_token_on_the_socket_and_on_tcp(
    tcp: str, reader: SnmlClient, method: str, fields: dict[str, object]
) -> None:
    with pytest.raises(Unauthenticated, match="token"):
        reader.ask(method, **fields)
    with SnmlClient(tcp, token="guess") as other, pytest.raises(Unauthenticated):
        other.ask(method, **fields)


def test_tcp_serves_loopback_with_health_and_reflection(tcp: str) -> None:
    with grpc.insecure_channel(tcp) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        for service in ("", *SERVICES):
            answer = check(health_pb2.HealthCheckRequest(service=service), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert set(SERVICES) <= set(ProtoReflectionDescriptorDatabase(channel).get_services())
    with SnmlClient(tcp) as client:
        assert client.ask("GetSystemPlatformInfo").is_emulated


def test_a_port_that_is_taken_leaves_the_socket(daemon: RunningDaemon, tcp: str, tmp_path: Path) -> None:
    port = int(tcp.rpartition(":")[2])
    paths = NodePaths(daemon.socket, tmp_path / "s", *(tmp_path / name for name in ("db", "a.log", "b.log", "token")))
    server = start_snml(paths, port)
    try:
        assert server.port is None and server.socket == paths.snml_socket
        assert str(port) in server.notices[0] and "taken" in server.notices[0]
        with SnmlClient(paths=paths) as client:
            assert client.ask("GetSystemPlatformInfo").platform_name == "DataScale TEST-1"
        with pytest.raises(Unavailable, match="another node serves it"):
            start_snml(paths, port)
    finally:
        server.stop()
    assert not paths.snml_socket.exists()


def test_without_a_node_the_client_says_how_to_start_one(tmp_path: Path) -> None:
    with (
        SnmlClient(str(tmp_path / "none"), timeout_s=5) as client,
        pytest.raises(Unavailable, match="rdukit node start"),
    ):
        client.ask("GetSystemFaults")


def test_a_node_that_stops_ends_the_watch_with_a_reason() -> None:
    home = Path("/tmp") / f"snml-{os.getpid()}"
    daemon = start_daemon(home, "TEST-1")
    try:
        with SnmlClient(paths=paths_of(daemon)) as client:
            events = client.watch()
            threading.Timer(0.5, daemon.process.terminate).start()
            with pytest.raises(Unavailable):
                list(events)
        # Not asked to stop once more: at its very end it has no handler for that any longer.
        assert daemon.process.wait(60) == 0
    finally:
        stop_daemon(daemon)
        shutil.rmtree(home, ignore_errors=True)


def test_a_watcher_sees_what_happens_and_only_the_kinds_it_wants(client: SnmlClient, daemon: RunningDaemon) -> None:
    last = client.ask("WatchEvents")[-1].sequence
    events = client.watch(since=last, kinds=["grant", "release"])
    with daemon.connect() as application:
        application.release(application.acquire("watched", 1, 0)["id"])
    grant, release = next(events), next(events)
    events.close()  # type: ignore[attr-defined]
    assert (grant.kind, release.kind, grant.application) == ("grant", "release", "watched")
    assert grant.sequence < release.sequence and abs(grant.timestamp / 1e9 - time.time()) < 60


def test_a_watcher_that_knows_events_of_an_earlier_run_begins_anew(client: SnmlClient, daemon: RunningDaemon) -> None:
    with daemon.connect() as application:
        application.acquire("seen", 1, 0)
        first, second, *_ = client.ask("WatchEvents", since=10**9)
    assert list(first.error_details) == ["the node has restarted, so its events count from 1 again"]
    assert second.sequence >= 1


def test_a_killed_node_s_socket_is_taken_over_and_old_clients_find_the_new_node() -> None:
    home = Path("/tmp") / f"snml-again-{os.getpid()}"
    daemon = start_daemon(home, "TEST-1", ["--snml-port", "-1"])
    try:
        with SnmlClient(paths=paths_of(daemon)) as client:
            (uuid,) = client.ask("Inject", events=[{"class_name": "tile-excluded"}]).fault_uuids
            daemon.process.kill()
            daemon.process.communicate()
            with pytest.raises(Unavailable):
                client.ask("GetSystemFaults")
            daemon = start_daemon(home, "TEST-1", ["--snml-port", "-1"])

            def is_back() -> bool:
                try:
                    return uuid in {reply.fault.fault_uuid for reply in client.ask("GetSystemFaults")}
                except Unavailable:
                    return False

            wait_until(is_back)
    finally:
        stop_daemon(daemon)
        shutil.rmtree(home, ignore_errors=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_reads_but_cannot_change_without_the_token(daemon: RunningDaemon) -> None:
    for folder in (daemon.home, daemon.home / "run"):  # both open, as the root prefix's are
        folder.chmod(0o755)
    program = (
        "import os, sys\n"
        "from rdukit.errors import RdukitError\n"
        "from rdukit_node.settings import node_paths\n"
        "from rdukit_node.snml.client import SnmlClient\n"
        "os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        "client = SnmlClient(paths=node_paths())\n"
        "print(client.ask('GetSystemPlatformInfo').platform_name, flush=True)\n"
        "try: client.ask('ResetRDU', comp_names=['/XRDU_0/RDU_0'])\n"
        "except RdukitError as error: print(error.code)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment(daemon.home), capture_output=True, text=True, check=False
    )
    assert ran.stdout.splitlines() == ["DataScale TEST-1", "unauthenticated"], ran.stderr


@pytest.mark.parametrize(
    ("method", "fields", "error"),
    [
        ("GetStaticResource", {"comp_name": "/NODE/XRDU_7"}, NotFound),
        ("GetSystemErrors", {"comp_name": "x" * 300}, InvalidArgument),
        ("GetSystemFaults", {"severity": "Awful"}, InvalidArgument),
        ("Inject", {"events": [{"class_name": "earthquake"}]}, InvalidArgument),
        ("Inject", {"events": [{"class_name": "fan", "data": "["}]}, InvalidArgument),
        ("Inject", {}, InvalidArgument),
        ("ClearSystemFault", {"fault_uuids": ["u"] * 1001}, InvalidArgument),
        ("Repair", {"comp_name": "/NODE/XRDU_7"}, RdukitError),
        ("GetSystemWeather", {}, InvalidArgument),
        ("GetSystemFaults", {"colour": "red"}, InvalidArgument),
    ],
)
def test_bad_input_is_refused_with_what_is_legal(
    client: SnmlClient, method: str, fields: dict[str, object], error: type[RdukitError]
) -> None:
    with pytest.raises(error):
        client.ask(method, **fields)


# -- hostile callers ---------------------------------------------------------------------------------------------------


def answers(daemon: RunningDaemon) -> bool:
    """Whether others are answered at the daemon's own socket."""
    with daemon.connect() as direct:
        return bool(direct.call("hello")["pid"] == daemon.process.pid)


def descriptors(daemon: RunningDaemon) -> int:
    return len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))


def test_fuzzed_bytes_do_not_hurt_the_daemon(daemon: RunningDaemon, tcp: str, client: SnmlClient) -> None:
    seeded = random.Random(4)
    host, _, port = tcp.partition(":")
    for round_ in range(150):
        is_local = round_ % 2 == 0
        with socket.socket(socket.AF_UNIX if is_local else socket.AF_INET) as raw:
            raw.settimeout(0.02)
            raw.connect(str(paths_of(daemon).snml_socket) if is_local else (host, int(port)))
            preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if round_ % 3 else b""
            try:
                raw.sendall(preface + seeded.randbytes(seeded.randint(1, 4000)))
                raw.recv(100)
            except OSError:
                pass
    assert client.ask("GetSystemPlatformInfo").is_emulated
    assert daemon.process.poll() is None


def test_fuzzed_messages_of_every_method_are_answered_and_change_nothing(
    daemon: RunningDaemon, client: SnmlClient
) -> None:
    seeded = random.Random(5)
    before = len(client.ask("GetSystemErrors"))
    with grpc.insecure_channel(f"unix:{paths_of(daemon).snml_socket}") as channel:
        for service in SERVICES:
            for method in ("GetTileInfo", "GetSystemFaults", "ClearSystemFault", "Inject", "WatchEvents", "No"):
                for _ in range(8):
                    call = channel.unary_stream(f"/{service}/{method}")(
                        seeded.randbytes(seeded.randint(0, 200)), timeout=0.3
                    )
                    # Most are refused; one that happens to be legal answers, or follows until its time is up.
                    with contextlib.suppress(grpc.RpcError):
                        list(call)
    assert len(client.ask("GetSystemErrors")) == before
    assert daemon.process.poll() is None


def test_a_request_that_is_too_large_is_refused(client: SnmlClient) -> None:
    with pytest.raises(Unavailable, match="larger than max"):
        client.ask("Inject", events=[{"class_name": "fan", "data": "x" * (2 << 20)}])


def test_many_idle_connections_leave_descriptors_to_the_daemon(daemon: RunningDaemon) -> None:
    before = descriptors(daemon)
    idle = [socket.socket(socket.AF_UNIX) for _ in range(300)]
    try:
        for connection in idle:
            connection.setblocking(False)
            try:
                connection.connect(str(paths_of(daemon).snml_socket))
            except BlockingIOError:
                break
        time.sleep(0.5)
        assert descriptors(daemon) - before < 200
        assert answers(daemon)
    finally:
        for connection in idle:
            connection.close()


def test_watchers_are_limited_and_give_their_places_back(daemon: RunningDaemon, client: SnmlClient) -> None:
    def is_full() -> bool:
        try:
            client.ask("WatchEvents")
        except NoResources:
            return True
        return False

    watches = [client.watch(kinds=["no-such-kind"]) for _ in range(MAX_WATCHERS)]

    def is_full_with_one_more() -> bool:
        # A watch that comes while a question of ``is_full`` has a place is refused: each question brings another.
        watches.append(client.watch(kinds=["no-such-kind"]))
        return is_full()

    wait_until(is_full_with_one_more)
    for watch in watches:
        watch.close()  # type: ignore[attr-defined]
    watches.clear()
    wait_until(lambda: not is_full())


# -- another language --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js with npm is not installed")
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "client.js"):
        shutil.copy(HERE / "snml_node" / name, folder)
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm cannot reach its registry: no answer within 120 s")
    if done.returncode:
        pytest.skip(f"npm cannot install the client's packages: {done.stderr.strip().splitlines()[-1:]}")
    return folder / "client.js"


def node(script: Path, target: str, *words: str, token: str = "", status: int = 0) -> Any:
    variables = {name: value for name, value in os.environ.items() if name != "SNML_TOKEN"}
    ran = subprocess.run(
        ["node", script, PROTO, target, *words],
        env={**variables, **({"SNML_TOKEN": token} if token else {})},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == status, ran.stdout + ran.stderr
    return json.loads(ran.stdout)


def test_a_client_in_another_language_reads_and_with_the_token_changes_the_node(
    daemon: RunningDaemon, tcp: str, client: SnmlClient, node_client: Path
) -> None:
    target = f"unix:{paths_of(daemon).snml_socket}"
    inventory = node(node_client, target, "inventory")
    assert inventory["platform"] == "DataScale TEST-1"
    assert [c["comp_name"] for c in inventory["components"]] == components(client.ask("GetStaticResource").root)

    tile = f"{RDU}/TILE_1"
    refused = node(node_client, target, "inject", "tile-excluded", tile, status=5)
    assert (refused["status"], refused["error"]["code"]) == (16, "unauthenticated")
    assert not client.ask("GetSystemFaults", comp_name=tile)

    token = read_token(paths_of(daemon).admin_token)
    event = node(node_client, tcp, "watch", "tile-excluded", tile, token=token)
    assert (event["kind"], event["comp_name"]) == ("fault", tile)
    active = [f for f in node(node_client, target, "faults")["faults"] if f["fault_state"] == "ACTIVE"]
    (fault,) = [f for f in active if f["comp_name"] == tile]
    assert event["fault_uuid"] == fault["fault_uuid"]
    assert int(fault["timestamp"]) > 1_600_000_000 * 10**9
    (result,) = node(node_client, target, "clear", fault["fault_uuid"], token=token)["results"]
    assert result["error_details"] == []
    client.ask("Repair", comp_name=tile)


def test_the_proto_file_alone_is_enough_for_a_client() -> None:
    pytest.importorskip("grpc_tools", reason="needs grpcio-tools, of the dev extra")
    checked = subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO.parent}", "--descriptor_set_out=/dev/null", PROTO],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (checked.returncode, checked.stderr) == (0, "")
