"""Fenced programs without a network, each with its relay, meet as gloo's ranks through the bridges of their workers."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rdukit.box.links import LOCAL_PORTS, PORTS, STORE_PORT, greet, link_key, part_address
from rdukit.errors import RdukitError, Unauthenticated
from rdukit.fence.probe import what_holds
from rdukit.fence.spec import ALIAS, FenceSpec, Way, choose_way
from rdukit.fence.start import program_paths, start_fenced
from rdukit_platform.worker.bridge import BridgeThread, bridging
from support import shows

pytestmark = shows("job-boxes", "security")

PARTS = 2
#: The user of the programs, if root starts them.
UID = 61234
END_S = 120.0
KEY = link_key("try-1", "token")

RANKS = f"""
import datetime, os, sys
from pathlib import Path
import torch, torch.distributed as dist
from rdukit.box.links import LinkedPart
from rdukit.box.relay import relaying

part, rank = int(sys.argv[1]), int(sys.argv[2])
def meet():
    store = dist.TCPStore("{part_address(0)}", {STORE_PORT}, 4, rank == 0, datetime.timedelta(seconds=60),
                          wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=4, timeout=datetime.timedelta(seconds=60))
    made = torch.full((300_000,), float(rank + 1))
    dist.all_reduce(made)
    dist.barrier()
    print("sum", made.unique().tolist(), flush=True)
    dist.destroy_process_group()

if rank % 2:
    meet()
else:  # the first one of a part has the relay, and starts the other one
    import subprocess
    with relaying(LinkedPart(part, {PARTS}, rank, 4, Path(sys.argv[3]))):
        other = subprocess.Popen([sys.executable, *sys.argv[:2], str(rank + 1)])
        meet()
        sys.exit(other.wait())
"""


STRANGER = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
except OSError as error:
    print("refused", error.strerror, flush=True)
"""


@pytest.fixture
def refused() -> list[tuple[str, str]]:
    """Whom the bridges refused: the address, and the error's code."""
    return []


@pytest.fixture
def bridges(tmp_path: Path, refused: list[tuple[str, str]]) -> Iterator[list[BridgeThread]]:
    def note(address: str, error: RdukitError) -> None:
        refused.append((address, error.code))

    with ExitStack() as stack:
        made = []
        for part in range(PARTS):
            folder = tmp_path / f"wires-{part}"
            folder.mkdir()
            made.append(stack.enter_context(bridging(KEY, part, folder / "links.sock", "127.0.0.1", 0o666, note)))
        for each in made:
            each.meet([each.address for each in made])
        yield made


def start(folder: Path, part: int, said: Path) -> "subprocess.Popen[bytes]":
    """The two ranks of a part, in one fence."""
    work = folder / f"part-{part}"
    work.mkdir()
    script = work / "ranks.py"
    script.write_text(RANKS)
    way = choose_way(os.geteuid() == 0)
    uid = UID if way is Way.ROOT else None
    if uid is not None:
        shutil.chown(work, uid, uid)
        folder.chmod(0o755)
    wires = folder / f"wires-{part}"
    command = [sys.executable, str(script), str(part), str(2 * part), str(wires / "links.sock")]
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(work), "RDUKIT_HOME": str(work), "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": ALIAS,
    }  # fmt: skip
    spec = FenceSpec(
        command, environment, str(work), [*program_paths(command[:1]), str(wires)], [str(work)], uid=uid,
        parent=os.getpid(), address=part_address(part), ports=LOCAL_PORTS,
    )  # fmt: skip
    with said.open("wb") as output:
        return start_fenced(spec, way, output)


@pytest.mark.long
@pytest.mark.skipif(not what_holds().holds, reason=f"no fence holds here: {what_holds().why}")
def test_ranks_in_boxes_without_a_network_average_over_their_workers_bridges(
    tmp_path: Path, bridges: list[BridgeThread]
) -> None:
    said = [tmp_path / f"said-{part}.txt" for part in range(PARTS)]
    programs = [start(tmp_path, part, said[part]) for part in range(PARTS)]
    try:
        ends = [program.wait(END_S) for program in programs]
    finally:
        for program in programs:
            program.kill()
    told = [file.read_text() for file in said]
    assert ends == [0] * PARTS, told
    assert [text.count("sum [10.0]") for text in told] == [2, 2], told


@pytest.mark.skipif(not what_holds().holds, reason=f"no fence holds here: {what_holds().why}")
def test_a_box_that_is_not_of_the_attempt_does_not_reach_its_bridges(
    tmp_path: Path, bridges: list[BridgeThread]
) -> None:
    way, uid, said = choose_way(os.geteuid() == 0), None, tmp_path / "said.txt"
    if way is Way.ROOT:
        uid = UID
        tmp_path.chmod(0o755)
    command = [sys.executable, "-c", STRANGER, *bridges[0].address.split(":")]
    spec = FenceSpec(
        command, {"PATH": os.environ["PATH"]}, "/", program_paths(command[:1]), [], uid=uid, parent=os.getpid()
    )  # fmt: skip
    with said.open("wb") as output:
        program = start_fenced(spec, way, output)
    assert program.wait(END_S) == 0
    assert said.read_text() == "refused Connection refused\n"  # its loopback is its own, and nobody is there


def test_who_does_not_have_the_key_gets_no_stream(bridges: list[BridgeThread], refused: list[tuple[str, str]]) -> None:
    async def ask(key: bytes, part: int, port: int) -> None:
        host, _, at = bridges[1].address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(at))
        try:
            await greet(reader, writer, key, 0, part, port)
        finally:
            writer.close()

    for key, part, port in ((b"x" * 32, 1, PORTS[0]), (KEY, 0, PORTS[0]), (KEY, 1, STORE_PORT), (KEY, 1, 22)):
        with pytest.raises(EOFError):
            asyncio.run(asyncio.wait_for(ask(key, part, port), 30.0))
    assert refused == [("127.0.0.1", "unauthenticated")] * 4


def test_what_answers_for_another_part_has_to_have_the_key_too() -> None:
    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(32))
        await reader.readexactly(70)
        writer.write(bytes(32))
        writer.close()
        await writer.wait_closed()

    async def ask() -> None:
        server = await asyncio.start_server(impostor, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            await greet(reader, writer, KEY, 0, 1, PORTS[0])
        finally:
            writer.close()
            server.close()

    with pytest.raises(Unauthenticated):
        asyncio.run(asyncio.wait_for(ask(), 30.0))


def test_a_box_reaches_the_other_parts_ports_and_nothing_else(
    tmp_path: Path, bridges: list[BridgeThread], refused: list[tuple[str, str]]
) -> None:
    for asked in (b"C\0\0\0\x16", b"C\0\1\xb7\x99", b"C\0\2\xb7\x99", b"X"):  # port 22, its own part, no part, no word
        with socket.socket(socket.AF_UNIX) as box:
            box.settimeout(30.0)
            box.connect(str(tmp_path / "wires-1" / "links.sock"))
            box.sendall(asked)
            assert box.recv(1) == b""
    assert refused == [("", "permission-denied")] * 3
