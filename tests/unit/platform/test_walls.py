"""What is round jobs' boxes, when that is not enough, and which user each tenant's have."""

from pathlib import Path
from types import MappingProxyType

import pytest

from rdukit.errors import InvalidArgument, NotFenced
from rdukit.fence.probe import Fence
from rdukit.fence.spec import FencePart, Way
from rdukit.settings import resolve
from rdukit_platform.backends.job_boxes import read_claim
from rdukit_platform.services import beat_service
from rdukit_platform.settings import NODE_LINK_HOST, Home
from rdukit_platform.tenants.service import check_may_add, create_tenant
from rdukit_platform.worker.parts import choose_link_host
from rdukit_platform.worker.walls import (
    TenantFences,
    WallKind,
    Walls,
    check_walls,
    choose_walls,
    find_uid,
    open_walls,
    read_uids,
)
from support import shows
from support.platform.processes import fresh_database

pytestmark = shows("job-boxes", "security")

HOLDS = Fence(Way.USER, MappingProxyType({}))
BROKEN = Fence(None, MappingProxyType({FencePart.NAMESPACES: "the kernel refuses them to user 7"}))


def test_a_process_is_fenced_where_that_holds_and_a_container_is_one() -> None:
    assert choose_walls("auto", True, HOLDS) == Walls(WallKind.FENCE, Way.USER)
    assert choose_walls("required", True, HOLDS).kind is WallKind.FENCE
    for mode in ("auto", "required", "off"):
        assert choose_walls(mode, False, None) == Walls(WallKind.CONTAINER)


def test_without_a_fence_the_worker_says_why_or_does_not_start() -> None:
    bare = choose_walls("auto", True, BROKEN)
    assert bare.kind is WallKind.NOTHING and "namespaces: the kernel refuses them to user 7" in bare.why
    assert choose_walls("off", True, None).why == "worker.fence is off"
    with pytest.raises(NotFenced, match=r"worker.fence is required.*user 7.*run the worker as root"):
        choose_walls("required", True, BROKEN)


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_one_tenant_may_go_on_without_a_fence_and_two_may_not(mode: str) -> None:
    bare = choose_walls(mode, True, None if mode == "off" else BROKEN)
    check_walls(bare, 1)
    with pytest.raises(NotFenced, match=r"there are 2 tenants.*not fenced.*worker.box_backend to podman"):
        check_walls(bare, 2)
    for walls in (Walls(WallKind.FENCE, Way.ROOT), Walls(WallKind.CONTAINER)):
        check_walls(walls, 9)


def test_containers_that_reach_the_network_are_no_walls() -> None:
    open_pods = choose_walls("auto", False, None, "this pod reaches the cluster's API")
    check_walls(open_pods, 1)
    with pytest.raises(NotFenced, match=r"2 tenants.*reaches the cluster's API; install a network plugin"):
        check_walls(open_pods, 2)
    assert open_pods.description.startswith("nothing: this pod reaches")
    with pytest.raises(NotFenced, match=r"worker\.fence is required, but boxes reach the network: this pod"):
        choose_walls("required", False, None, "this pod reaches the cluster's API")


class Pods:
    """A backend that can try its network."""

    name = "kubernetes"

    def __init__(self, found: str) -> None:
        self.found = found
        self.asked: list[str] = []

    def check_rights(self) -> None:
        self.asked.append("rights")

    def try_network(self, timeout_s: float = 90.0) -> str:
        self.asked.append("network")
        return self.found


@pytest.mark.parametrize(
    ("mode", "found", "kind", "asked"),
    [
        ("auto", "", WallKind.CONTAINER, ["rights", "network"]),
        ("required", "", WallKind.CONTAINER, ["rights", "network"]),
        ("auto", "open", WallKind.NOTHING, ["rights", "network"]),
        ("off", "", WallKind.NOTHING, ["rights"]),
    ],
)
def test_pods_are_walls_when_their_network_was_tried(
    mode: str, found: str, kind: WallKind, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_WORKER_FENCE", mode)
    pods = Pods(found)
    assert open_walls(pods).kind is kind  # type: ignore[arg-type]
    assert pods.asked == asked


@pytest.mark.parametrize("text", ["", "home", ":/var/lib", "home:var/lib", "home:/elsewhere"])
def test_a_claim_that_the_home_folder_is_not_in_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"worker\.box_claim is"):
        read_claim(text, Path("/var/lib/rdukit/home"))
    assert read_claim("home:/var/lib/rdukit", Path("/var/lib/rdukit/home")).claim == "home"


def test_a_second_tenant_is_not_made_while_a_worker_has_no_fence(tmp_path: Path) -> None:
    bare = Walls(WallKind.NOTHING, why="worker.fence is off").description
    with fresh_database(tmp_path) as database, database.write() as session:
        beat_service(session, "worker@a", "worker", 1, 100.0, bare)
        check_may_add(session, 100.0)
        create_tenant(session, "first", 100.0)
        with pytest.raises(NotFenced, match=r"only one tenant.*worker@a: worker.fence is off; run the worker as root"):
            check_may_add(session, 100.0)
        check_may_add(session, 500.0)  # the worker has gone
        beat_service(session, "worker@b", "worker", 1, 500.0, Walls(WallKind.FENCE, Way.ROOT).description)
        beat_service(session, "worker@c", "worker", 1, 500.0, Walls(WallKind.CONTAINER).description)
        beat_service(session, "scheduler@c", "scheduler", 1, 500.0)
        check_may_add(session, 500.0)


def test_a_tenant_keeps_its_user_and_nobody_else_has_it(tmp_path: Path) -> None:
    users, uids = tmp_path / "users", range(5000, 5003)
    assert [find_uid(users, tenant, uids) for tenant in ("a", "b", "a", "c")] == [5000, 5001, 5000, 5002]
    with pytest.raises(NotFenced, match=r"all 3 users of worker\.fence_uids"):
        find_uid(users, "d", uids)
    assert find_uid(users, "d", range(5000, 5004)) == 5003


def test_of_two_users_that_two_workers_chose_at_once_the_lower_one_counts(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.mkdir()
    (users / "5001").symlink_to("a")
    (users / "5000").symlink_to("a")
    assert find_uid(users, "a", range(5000, 5009)) == 5000


def test_users_are_read_as_a_range_of_nobodys() -> None:
    assert read_uids("70000-70001") == range(70000, 70002)
    for text in ("", "7", "0-100", "9-8", "70001-70000", "a-b", f"1000-{1 << 31}"):
        with pytest.raises(InvalidArgument, match=r"worker\.fence_uids"):
            read_uids(text)


def test_a_tenants_fence_has_its_home_and_the_owner_of_its_key(tmp_path: Path) -> None:
    fences = TenantFences(Home(tmp_path), Walls(WallKind.FENCE, Way.ROOT), range(6000, 6001))
    fence = fences.of("ten_a")
    assert fence is not None
    assert (fence.owner, fence.home, fence.uid) == ("tenant:ten_a", tmp_path / "tenants" / "ten_a", 6000)
    user = TenantFences(Home(tmp_path), Walls(WallKind.FENCE, Way.USER), range(0)).of("ten_a")
    assert user is not None and user.uid is None
    assert TenantFences(Home(tmp_path), Walls(WallKind.CONTAINER), range(0)).of("ten_a") is None


def test_only_a_worker_of_fenced_processes_joins_boxes_to_those_of_other_nodes() -> None:
    assert choose_link_host(resolve(NODE_LINK_HOST), "docker", Walls(WallKind.CONTAINER)) is None
    host = resolve(NODE_LINK_HOST, "10.0.0.2")
    for backend, walls in (("docker", Walls(WallKind.CONTAINER)), ("slurm", Walls(WallKind.FENCE, Way.ROOT)),
                           ("process", Walls(WallKind.NOTHING, why="no fence holds here"))):  # fmt: skip
        with pytest.raises(
            InvalidArgument, match=r"node\.link_host is '10\.0\.0\.2', and job boxes here are not fenced"
        ):
            choose_link_host(host, backend, walls)
