"""Configuration of an image: the base's, changed for a box (pure)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rdukit.box.image import GRPC_PORT, REST_PORT, STATE_FOLDER, USER_ID
from rdukit_modelbox.image.contents import COMMAND, ENVIRONMENT, HEALTH_COMMAND
from rdukit_modelbox.image.media import build_time

_SECOND_NS: Final = 1_000_000_000


def empty_config(machine: str, path: str, has_tini: bool) -> dict[str, Any]:
    """Return the configuration of an image that has no layer yet."""
    return {
        "architecture": machine,
        "os": "linux",
        "config": {"Env": [f"PATH={path}"], "Entrypoint": ["tini", "-s", "--"] if has_tini else None},
        "rootfs": {"type": "layers", "diff_ids": []},
        "history": [],
    }


def with_layers(
    config: Mapping[str, Any], diff_ids: Sequence[str], comments: Sequence[str], seconds: int
) -> dict[str, Any]:
    """Return ``config`` with more layers on top, each with its comment."""
    created = build_time(seconds)
    layers = {"type": "layers", "diff_ids": [*config["rootfs"]["diff_ids"], *diff_ids]}
    entries = [{"created": created, "created_by": "rdukit box build", "comment": text} for text in comments]
    return {**config, "created": created, "rootfs": layers, "history": [*(config.get("history") or []), *entries]}


def box_config(base: Mapping[str, Any], labels: Mapping[str, str], diff_id: str, seconds: int) -> dict[str, Any]:
    """Return the configuration of a box on ``base``: its user, command, ports, labels and health check.

    ``Healthcheck`` is the engines' own key; the format lets it pass.
    """
    grown = with_layers(base, [diff_id], [labels["org.opencontainers.image.title"]], seconds)
    old = dict(base.get("config") or {})
    environment = dict(text.split("=", 1) for text in old.get("Env") or [] if "=" in text) | ENVIRONMENT
    old.update(
        {
            "User": f"{USER_ID}:{USER_ID}",
            "Env": [f"{key}={value}" for key, value in sorted(environment.items())],
            "Cmd": list(COMMAND),
            "WorkingDir": "/",
            "ExposedPorts": {f"{REST_PORT}/tcp": {}, f"{GRPC_PORT}/tcp": {}},
            "Volumes": {**(old.get("Volumes") or {}), STATE_FOLDER: {}},
            "Labels": {**(old.get("Labels") or {}), **labels},
            "Healthcheck": {
                "Test": ["CMD", *HEALTH_COMMAND],
                "Interval": 5 * _SECOND_NS,
                "Timeout": 5 * _SECOND_NS,
                "StartPeriod": 20 * _SECOND_NS,
                "Retries": 3,
            },
        }
    )
    return {**grown, "config": {key: value for key, value in old.items() if value is not None}}
