"""Values with which the chart is tried."""

from pathlib import Path
from typing import Any

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
    "database": {"kind": "bundled"},
    "secrets": {"existing": "passwords"},
    "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"may-call": "boxes"}}}]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
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
        "serviceAccount": {"create": False, "name": "mine"},
    },
}  # fmt: skip
