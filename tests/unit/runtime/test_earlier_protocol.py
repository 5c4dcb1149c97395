"""What a client of an earlier minor version said and was answered, said again: it finds everything that it knew.

The files hold conversations that were really had with the daemon of that version.
"""

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rdukit.hardware import find_node
from rdukit_node.daemon.connections import Peer, RegionGrant
from rdukit_node.daemon.daemon import NodeDaemon
from rdukit_node.daemon.protocol import PROTOCOL_MINOR
from rdukit_node.faults.machine import FaultMachine
from rdukit_node.leases.allocator import Allocator
from support import shows

pytestmark = shows("wire", "node")

FILES = sorted((Path(__file__).parents[2] / "data/snd").glob("exchange_*.json"))


def test_there_is_a_conversation_of_every_earlier_minor_version() -> None:
    versions = {tuple(map(int, file.stem.split("_")[-2:])) for file in FILES}
    assert versions >= {(1, earlier) for earlier in range(PROTOCOL_MINOR)}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_earlier_client_is_answered_as_before(file: Path) -> None:
    recorded = json.loads(file.read_text())
    node = find_node(recorded["platform"])
    numbers, uuids = count(1), count(1)
    daemon = NodeDaemon(
        Allocator(node),
        name="recorded",
        version="0.1.0",
        started_at=1000.0,
        new_identity=lambda: (f"lease-{(n := next(numbers))}", f"token-{n}"),
        faults=FaultMachine(node, lambda: str(next(uuids))),
    )
    for step in recorded["exchange"]:
        if "connect" in step:
            daemon.connected(step["connect"], Peer(step["pid"]))
        elif "close" in step:
            daemon.disconnected(step["close"], step["at"])
        else:
            answer = daemon.handle(step["connection"], json.dumps(step["request"]).encode(), step["at"])
            assert answer is not None
            now = json.loads(json.dumps(answer.body))
            assert_has(now, step["answer"], str(step["request"]))
            grant = answer.grant
            assert (grant.bytes if isinstance(grant, RegionGrant) else None) == step["descriptor_bytes"]
        daemon.validate()


def assert_has(now: Any, before: Any, where: str) -> None:
    """``now`` has every field that ``before`` had, with its value. A message for people may be worded anew.

    The protocol's version and its words for features grow.
    """
    if isinstance(before, dict):
        assert isinstance(now, dict), where
        for name, value in before.items():
            assert name in now, f"{where}: {name} is missing"
            if name == "minor":
                assert now[name] >= value, where
            elif name == "features":
                assert set(now[name]) >= set(value), where
            elif name not in {"message", "reason"}:
                assert_has(now[name], value, f"{where} {name}")
    elif isinstance(before, list):
        assert len(now) == len(before), where
        for one, other in zip(now, before, strict=True):
            assert_has(one, other, where)
    else:
        assert now == before, where
