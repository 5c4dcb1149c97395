"""A box as a Pod, and what a Pod's status means."""

from dataclasses import replace
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit_platform.backends.container_options import container_options
from rdukit_platform.backends.containers import _seconds
from rdukit_platform.backends.contract import BoxEventKind, BoxLimits, BoxOwner, BoxSpec, ClaimedFolder, is_orphan
from rdukit_platform.backends.kubernetes import end_events, pending_reasons
from rdukit_platform.backends.pods import PodRules, PodTemplate, describe_limits, make_pod, owner_of, parse_quantity
from support import shows

pytestmark = shows("images", "kubernetes", "job-boxes", "box-containers")

FOLDERS = [ClaimedFolder(Path("/data"), "data"), ClaimedFolder(Path("/data/cold"), "cold")]
RULES = PodRules("boxes", "rdukit/modelbox:1", FOLDERS)
SPEC = BoxSpec(
    "logreg", Path("/data/jobs/7"), [Path("/data/cold/mnist")], {"RDUKIT_LEASE": "x"},
    BoxLimits(cores=(4, 5), memory_bytes=1 << 30, pids=100), BoxOwner("platform-1", 3),
    outputs=[Path("/data/jobs/out")],
)  # fmt: skip


def test_a_pod_has_no_rights_and_mounts_claims_only() -> None:
    pod = make_pod(SPEC, "rdukit-1", RULES)
    inner = pod["spec"]
    (container,) = inner["containers"]
    assert inner["automountServiceAccountToken"] is False
    assert inner["securityContext"]["runAsNonRoot"] and inner["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"] == {"cpu": "2", "memory": str(1 << 30)}
    assert container["volumeMounts"][1:] == [
        {"name": "data", "mountPath": "/data/jobs/7", "subPath": "jobs/7"},
        {"name": "data", "mountPath": "/data/jobs/out", "subPath": "jobs/out"},
        {"name": "cold", "mountPath": "/data/cold/mnist", "subPath": "mnist", "readOnly": True},
    ]
    assert "hostPath" not in str(pod)
    assert owner_of(pod["metadata"]["labels"]) == BoxOwner("platform-1", 3)


def test_what_kubernetes_would_refuse_is_told_before() -> None:
    with pytest.raises(InvalidArgument, match="RFC 1123"):
        make_pod(SPEC, "Not_a_name", RULES)
    with pytest.raises(InvalidArgument, match="in no persistent volume claim; expected a path in none"):
        make_pod(SPEC, "a", replace(RULES, folders=[]))
    with pytest.raises(InvalidArgument, match="owner"):
        make_pod(BoxSpec("logreg", Path("/data/x"), owner=BoxOwner("a b", 1)), "a", RULES)
    with pytest.raises(InvalidArgument, match="/run is in no persistent volume claim"):
        make_pod(replace(SPEC, sockets=[Path("/run/s")]), "a", RULES)
    assert describe_limits(SPEC, PodTemplate())["pids"].startswith("not applied")


def test_a_pods_end_is_read_from_its_status() -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "1970-01-01T00:01:00Z"}
    events = end_events({"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]})
    assert [(event.kind, event.time) for event in events] == [
        (BoxEventKind.OUT_OF_MEMORY, 60),
        (BoxEventKind.ENDED, 60),
    ]
    assert end_events({"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}) == []
    (evicted,) = end_events({"phase": "Failed", "reason": "Evicted", "message": "disk"})
    assert evicted.detail == "Evicted: disk"


def test_what_keeps_a_pod_from_starting_is_told() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient cpu"}
    assert pending_reasons({"conditions": [condition]}) == ["Unschedulable: Insufficient cpu"]
    creating = {"state": {"waiting": {"reason": "ContainerCreating"}}}
    assert pending_reasons({"containerStatuses": [creating]}) == ["ContainerCreating"]
    assert pending_reasons({"conditions": [condition | {"status": "True"}], "containerStatuses": [{}]}) == []


@pytest.mark.parametrize(
    ("text", "value"), [("250m", 0.25), ("64Mi", 64 << 20), ("12345n", 12345e-9), ("2", 2), ("1k", 1000)]
)
def test_quantities_are_read(text: str, value: float) -> None:
    assert parse_quantity(text) == pytest.approx(value)


def test_a_container_is_asked_for_with_the_leases_cores_and_no_rights() -> None:
    options = container_options(replace(SPEC, sockets=[Path("/run/leases/7/snd.sock")]), "rdukit/modelbox:1")
    assert options["environment"]["RDUKIT_SND_STATE"] == "/data/jobs/7", "where it may write sn.log"
    assert options["cpuset_cpus"] == "4,5" and options["environment"]["OMP_NUM_THREADS"] == "2"
    assert (options["mem_limit"], options["pids_limit"]) == (1 << 30, 100)
    assert options["read_only"] and options["cap_drop"] == ["ALL"] and options["security_opt"] == ["no-new-privileges"]
    limits = {limit["name"]: limit["hard"] for limit in options["ulimits"]}
    assert limits == {"nofile": 4096, "fsize": 64 << 30, "core": 0}
    assert container_options(BoxSpec("logreg", Path("/data/jobs/7")), "i")["pids_limit"] == 2048
    modes = {path: bound["mode"] for path, bound in options["volumes"].items() if bound["bind"] == path}
    assert modes == {"/data/jobs/7": "rw", "/data/jobs/out": "rw", "/data/cold/mnist": "ro", "/run/leases/7": "ro"}
    assert {bound[0] for bound in options["ports"].values()} == {"127.0.0.1"}
    assert options["labels"]["dev.rdukit.epoch"] == "3"


def test_volumes_of_an_image_are_memory_unless_a_folder_is_there() -> None:
    options = container_options(SPEC, "i", ["seccomp={}"], ["/var/lib/rdukit", "/data/jobs/out"])
    assert set(options["tmpfs"]) == {"/tmp", "/var/tmp", "/var/lib/rdukit"}
    assert all(f"size={2 << 30}" in told and "uid=" in told for told in options["tmpfs"].values())
    assert options["security_opt"] == ["no-new-privileges", "seccomp={}"]


def test_a_container_with_sockets_has_no_network_and_no_ports() -> None:
    options = container_options(replace(SPEC, has_sockets=True), "rdukit/modelbox:1")
    assert options["network_mode"] == "none" and "ports" not in options
    command = options["command"]
    assert command[command.index("--socket-folder") + 1] == "/data/jobs/7" and "--host" not in command
    assert "network_mode" not in container_options(SPEC, "rdukit/modelbox:1")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:01:00.123456789Z", 60.123456789),
        ("1970-01-01T01:01:00.5+01:00", 60.5),
        ("1970-01-01T00:01:00Z", 60.0),
        ("0001-01-01T00:00:00Z", None),
    ],
)
def test_engines_times_are_read(text: str, seconds: float | None) -> None:
    assert _seconds(text) == (None if seconds is None else pytest.approx(seconds))


def test_only_an_earlier_epoch_of_the_same_owner_leaves_orphans() -> None:
    now = BoxOwner("a", 2)
    assert is_orphan(BoxOwner("a", 1), now)
    assert (
        not is_orphan(BoxOwner("a", 2), now)
        and not is_orphan(BoxOwner("b", 1), now)
        and not is_orphan(BoxOwner("a", 3), now)
    )
