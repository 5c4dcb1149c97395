"""A job's box as a Pod: what it is given, what an operator may add, and when it does not begin."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rdukit.errors import InvalidArgument
from rdukit.fence.in_pod import take_variables, wait_shut
from rdukit_platform.backends.contract import BoxLimits, BoxOwner, BoxSpec, ClaimedFolder
from rdukit_platform.backends.pods import (
    PodRules,
    PodTemplate,
    describe_limits,
    make_pod,
    make_template,
    make_trying_pod,
    read_template,
)
from support import FakeClock, shows

pytestmark = shows("job-boxes", "kubernetes")

JOB = Path("/var/lib/rdukit/home/work/job-1")
SPEC = BoxSpec(
    "logreg", JOB / "attempt-2", [JOB / "in"], {"RDUKIT_LEASE": "7:secret", "RDUKIT_LOG_LEVEL": "INFO"},
    owner=BoxOwner("job-1", 2), outputs=[JOB / "out"], has_sockets=True,
    sockets=[Path("/var/lib/rdukit/home/run/leases/7/snd.sock")],
)  # fmt: skip
TEMPLATE: dict[str, Any] = {
    "labels": {"app.kubernetes.io/name": "rdukit", "app.kubernetes.io/component": "job"},
    "spec": {"serviceAccountName": "demo", "tolerations": [{"key": "rdu", "operator": "Exists"}], "hostUsers": False},
    "resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "2500m", "memory": "8Gi"}},
    "imagePullPolicy": "Never",
    "tmpSize": "1Gi",
}
RULES = PodRules(
    "boxes", "rdukit/modelbox:1", [ClaimedFolder(Path("/var/lib/rdukit"), "home")], make_template(TEMPLATE), 10001,
    {"name": "worker-1", "uid": "u"}, is_shut=True,
)  # fmt: skip


def test_a_jobs_pod_sees_its_own_folders_of_the_claim_and_nothing_else() -> None:
    (container,) = make_pod(SPEC, "rdukit-1", RULES)["spec"]["containers"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts.pop("/tmp")["name"] == "tmp"
    assert {path: (mount["subPath"], mount.get("readOnly", False)) for path, mount in mounts.items()} == {
        str(JOB / "attempt-2"): ("home/work/job-1/attempt-2", False),
        str(JOB / "out"): ("home/work/job-1/out", False),
        str(JOB / "in"): ("home/work/job-1/in", True),
        "/var/lib/rdukit/home/run/leases/7": ("home/run/leases/7", True),
    }
    assert all(mount["subPath"] for mount in mounts.values()), "a mount without it would be the whole claim"


def test_a_jobs_pod_has_no_port_no_rights_and_no_secret_in_the_api() -> None:
    pod = make_pod(SPEC, "rdukit-1", RULES)
    (container,) = pod["spec"]["containers"]
    assert not {"ports", "readinessProbe", "livenessProbe", "startupProbe"} & set(container)
    assert "secret" not in json.dumps(pod), "whoever may look at Pods would have the lease"
    assert {each["name"] for each in container["env"]} == {"RDUKIT_HOME", "HOME", "OMP_NUM_THREADS"}
    inner = pod["spec"]
    assert inner["automountServiceAccountToken"] is False and inner["enableServiceLinks"] is False
    assert inner["securityContext"] == {
        "runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "seccompProfile": {"type": "RuntimeDefault"},
    }, "a group of the file system would change the modes of the whole claim"  # fmt: skip
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(inner)
    assert [set(volume) for volume in inner["volumes"]] == [{"name", "emptyDir"}, {"name", "persistentVolumeClaim"}]


def test_a_jobs_pod_tries_its_network_before_it_becomes_the_box() -> None:
    (container,) = make_pod(SPEC, "rdukit-1", RULES)["spec"]["containers"]
    ours, _, box = " ".join(container["args"]).partition(" -- ")
    assert ours.startswith("python -I -m rdukit.fence.in_pod") and "--shut-within 10 --looks 1" in ours
    assert f"--variables {JOB}/attempt-2/" in ours
    assert box.startswith("rdukit box run logreg --socket-folder") and "--host" not in box
    (untried,) = make_pod(SPEC, "rdukit-1", replace(RULES, is_shut=False))["spec"]["containers"]
    assert "--shut-within" not in untried["args"]
    (trying,) = make_trying_pod("rdukit-try-1", RULES)["spec"]["containers"]
    assert trying["args"][-3:] == ["--looks", "3", "--"]
    assert [mount["name"] for mount in trying["volumeMounts"]] == ["tmp"]


def test_a_jobs_pod_is_where_and_as_large_as_the_template_says() -> None:
    pod = make_pod(SPEC, "rdukit-1", RULES)
    labels = pod["metadata"]["labels"]
    assert (labels["app.kubernetes.io/component"], labels["dev.rdukit.owner"]) == ("job", "job-1")
    assert pod["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Pod", "name": "worker-1", "uid": "u"}]
    assert pod["spec"]["tolerations"] == TEMPLATE["spec"]["tolerations"] and pod["spec"]["hostUsers"] is False
    (container,) = pod["spec"]["containers"]
    assert container["imagePullPolicy"] == "Never" and container["resources"] == TEMPLATE["resources"]
    assert {"name": "OMP_NUM_THREADS", "value": "2"} in container["env"]
    assert pod["spec"]["volumes"][0]["emptyDir"] == {"sizeLimit": "1Gi"}
    assert make_trying_pod("a", RULES)["metadata"]["labels"]["app.kubernetes.io/component"] == "job"


def test_a_jobs_own_limits_win_and_all_are_told() -> None:
    spec = replace(SPEC, limits=BoxLimits(memory_bytes=1 << 30, pids=9))
    (container,) = make_pod(spec, "rdukit-1", RULES)["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "2500m", "memory": str(1 << 30)}
    assert "--processes 9 --shut-within" in " ".join(container["args"])
    told = describe_limits(spec, RULES.template)
    assert told["memory"] == f"applied: {1 << 30} bytes" and told["cores"].startswith("applied: 2500m processors")
    assert told["pids"].startswith("applied: 9 processes")
    assert describe_limits(replace(spec, has_sockets=False), RULES.template)["pids"].startswith("not applied")
    assert describe_limits(SPEC, PodTemplate()) == {}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "expected an object"),
        ({"containers": []}, "containers is"),
        ({"labels": "a"}, "labels is 'a'"),
        ({"labels": {"dev.rdukit.owner": "me"}}, "the label dev.rdukit.owner"),
        ({"spec": {"hostNetwork": True}}, r"spec\.hostNetwork is not valid"),
        ({"spec": {"volumes": []}}, r"spec\.volumes is not valid"),
        ({"spec": {"securityContext": {}}}, r"spec\.securityContext is not valid"),
        ({"spec": {"automountServiceAccountToken": True}}, r"spec\.automountServiceAccountToken"),
        ({"spec": {"hostUsers": True}}, r"spec\.hostUsers is True"),
        ({"resources": {"claims": {}}}, r"resources\.claims"),
        ({"resources": {"limits": {"memory": "much"}}}, r"resources\.limits\.memory is 'much'"),
    ],
)
def test_a_template_takes_no_wall_away(value: object, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        make_template(value)


def test_a_template_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "pod.json").write_text("{")
    for name in ("pod.json", "missing.json"):
        with pytest.raises(InvalidArgument, match=f"{name} cannot be read"):
            read_template(tmp_path / name)


@pytest.mark.parametrize(
    ("answers", "looks", "is_shut"),
    [
        ([False], 1, True),
        ([True, True, False], 1, True),  # the plugin put its rules up a moment later
        ([False, True, False, False], 2, True),  # there was no network yet at the first look
        ([True] * 9, 1, False),
        ([False, True] * 9, 2, False),
    ],
)
def test_a_network_is_shut_when_nothing_is_reached_often_enough(answers: list[bool], looks: int, is_shut: bool) -> None:
    rest = iter(answers)
    assert wait_shut(lambda: next(rest), 1.0, looks, FakeClock()) is is_shut


def test_variables_are_taken_once(tmp_path: Path) -> None:
    file = tmp_path / "variables.json"
    file.write_text('{"RDUKIT_LEASE": "7:secret"}')
    assert take_variables(file) == {"RDUKIT_LEASE": "7:secret"}
    assert not file.exists()
