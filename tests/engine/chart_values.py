"""The chart, and values with which it is tried."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[2] / "charts/rdukit"
EVERYTHING: dict[str, Any] = {
    "images": {"registry": "registry.example/team", "pullSecrets": ["login"]},
    "settings": {"RDUKIT_JOB_MAX_ATTEMPTS": 5},
    "node": {"tolerations": [{"key": "rdu", "operator": "Exists"}], "priorityClassName": "high"},
    "gateway": {
        "autoscaling": {"enabled": True, "minReplicas": 2},
        "ingress": {"enabled": True, "host": "rdukit.example.org", "className": "nginx", "tlsSecret": "certificate"},
    },
    "worker": {"autoscaling": {"enabled": True}, "settings": {"RDUKIT_JOB_MAX_ATTEMPTS": 7}},
    "jobs": {"userNamespaces": True, "runtimeClassName": "own-kernel", "priorityClassName": "low"},
    "database": {"kind": "bundled"},
    "secrets": {"existing": "passwords"},
    "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"may-call": "boxes"}}}]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "token": {"secret": "scraper"}},
    "boxes": [
        {
            "name": "logreg", "pef": "/models/logreg.pef", "checkpoint": "/models/checkpoint", "replicas": 3,
            "models": {"existingClaim": "models"}, "tokens": {"secret": "tokens"}, "secretEnvironment": "s3",
        },
        {
            "name": "digits-mlp", "box": "mlp", "pef": "s3://models/mlp.pef", "autoscaling": {"enabled": True},
            "image": {"repository": "boxes/mlp", "digest": "sha256:" + "0" * 64}, "priorityClassName": "high",
            "nodeSelector": {"disk": "fast"}, "settings": {"RDUKIT_BOX_MAX_QUEUE": 64},
        },
        {"name": "own", "box": "/opt/rdukit/box/modelbox.yaml", "state": {"existingClaim": "own"}},
    ],
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "defaults with passwords that exist": {"secrets": {"existing": "passwords"}},
    "everything": EVERYTHING,
    "boxes only": {"platform": {"enabled": False}, "boxes": [{"name": "logreg"}]},
    "external": {
        "broker": {"bundled": False, "external": {"secret": "urls", "key": "broker"}},
        "database": {"kind": "external", "external": {"secret": "urls", "key": "database"}},
        "home": {"existingClaim": "shared"}, "networkPolicy": {"enabled": False},
        "serviceAccount": {"create": False, "name": "mine", "worker": "mine-worker"},
    },
    "nodes and a bucket": {
        "nodes": {
            "enabled": True, "labels": "zone=b", "settings": {"RDUKIT_ENGINE_THREADS": 2}, "priorityClassName": "high",
            "tolerations": [{"key": "rdu", "operator": "Exists"}],
        },
        "artifacts": {"store": "s3://models/rdukit", "secretEnvironment": "s3"}, "jobs": {"boxes": "worker"},
        "database": {"kind": "bundled"}, "secrets": {"existing": "passwords"},
    },
    "nodes and a claim of all": {
        "nodes": {"enabled": True, "nodeSelector": {"pool": "rdu"}}, "artifacts": {"existingClaim": "artifacts"},
        "jobs": {"boxes": "worker"}, "broker": {"bundled": False, "external": {"secret": "urls", "key": "broker"}},
        "database": {"kind": "external", "external": {"secret": "urls", "key": "database"}},
    },
    "jobs in the worker": {"secrets": {"existing": "passwords"}, "jobs": {"boxes": "worker"}},
}  # fmt: skip


def render_chart(release: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The chart's objects, by Helm's SDK; skips where it is not installed."""
    helm = pytest.importorskip("helm_python", reason="chart: helm-python-sdk is not installed")
    rendered = helm.Chart.load(CHART).render(dict(values), name=release, namespace="default")
    texts = [text for name, text in rendered.items() if name.endswith(".yaml")]
    return [item for item in yaml.safe_load_all("\n---\n".join(texts)) if item]
