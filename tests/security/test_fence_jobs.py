"""Hostile boxes that a tenant installed, as fenced processes of the real platform: what they reach for is not there."""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit.errors import NotFenced
from rdukit.fence.probe import what_holds
from rdukit.pef.trust import key_path
from rdukit_platform.backends.process_tree import tree_of
from support import shows
from support.platform.hostile import ENVIRONMENT, Hostile, HostileBoxes, is_audited
from support.platform.processes import PlatformUnderTest, platform_under_test, short_folder

pytestmark = [
    shows("security", "job-boxes"),
    pytest.mark.skipif(not what_holds().holds, reason=f"no fence holds here: {what_holds().why}"),
]

BOX = Path(__file__).parents[1] / "integration" / "platform_box.py"
SETTINGS = {
    "RDUKIT_WORKER_FENCE": "required", "RDUKIT_WORKER_FENCE_UIDS": "1800000000-1800000099",
    "RDUKIT_WORKER_BOX_DISK": str(64 << 20),
}  # fmt: skip


class FencedBoxes(HostileBoxes):
    SHOWN = frozenset({"tenants", "work"})

    def test_its_kernels_are_signed_with_a_key_that_only_its_own_boxes_trust(
        self, platform: PlatformUnderTest, hostile: Hostile
    ) -> None:
        found = hostile.said("said = read(os.environ['RDUKIT_HOME'] + '/kernels/trust.key')")
        own = key_path(platform.home).read_bytes()
        assert len(bytes.fromhex(found)) == len(own) and bytes.fromhex(found) != own

    def test_two_tenants_have_two_users_and_a_tenant_always_the_same(
        self, platform: PlatformUnderTest, hostile: Hostile
    ) -> None:
        if os.getuid() != 0:
            pytest.skip("only root can give tenants users of their own")
        first, again = (hostile.said("said = os.getuid()") for _ in range(2))
        assert first == again and 1_800_000_000 <= first < 1_800_000_100
        other = Hostile(platform, platform.client, hostile.folder).said("said = os.getuid()")
        assert other not in {first, 0}


@pytest.mark.long
class TestFence(FencedBoxes):
    """Each box is a process that is started for it."""

    @pytest.fixture(scope="class")
    @staticmethod
    def platform() -> Iterator[PlatformUnderTest]:
        with (
            short_folder() as home,
            platform_under_test(home, BOX, {**ENVIRONMENT, **SETTINGS}, is_cold=True) as running,
        ):
            yield running


class TestWarmFence(FencedBoxes):
    """Each box is a fork of the worker's fork server."""

    @pytest.fixture(scope="class")
    @staticmethod
    def platform() -> Iterator[PlatformUnderTest]:
        settings = {**ENVIRONMENT, **SETTINGS, "RDUKIT_WORKER_WARM_BOXES": "always"}
        with short_folder() as home, platform_under_test(home, BOX, settings, is_cold=True) as running:
            yield running

    def test_its_box_is_a_fork_and_the_server_has_nothing_of_the_workers(
        self, platform: PlatformUnderTest, hostile: Hostile
    ) -> None:
        # Not even the launcher's: the program that the kernel started is the server's.
        assert "fork-server" in hostile.said("said = open('/proc/self/cmdline').read()")
        worker = platform.pid_of("worker")
        servers = [facts.pid for facts in tree_of(worker) if b"fork-server" in _read(facts.pid, "cmdline")]
        assert servers
        for pid in servers:
            assert b"of the cloud" not in _read(pid, "environ")
            assert b"BROKER" not in _read(pid, "environ")


def _read(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


def test_a_second_tenant_is_refused_where_boxes_are_not_fenced() -> None:
    with short_folder() as home, platform_under_test(home, BOX, {"RDUKIT_WORKER_FENCE": "off"}) as platform:
        assert platform.wait_end(platform.submit("preprocess")["id"])["state"] == "succeeded"
        with pytest.raises(NotFenced, match=r"only one tenant.*worker\.fence is off"):
            platform.client.post("/v1/tenants", {"name": "second"})
        with sqlite3.connect(home / "db.sqlite") as database:
            # As an administrator of the database can, or one who switched the fence off afterwards.
            database.execute("insert into tenants (id, name, created_at) values ('ten_x', 'second', 0)")
        done = platform.wait_end(platform.submit("preprocess")["id"])
        assert (done["state"], done["error"]["code"]) == ("failed", "not-fenced")
        assert "there are 2 tenants" in done["error"]["message"] and len(done["attempts"]) == 1
        assert is_audited(platform, done, "not-fenced")
