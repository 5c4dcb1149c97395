"""What the Compose profile ``monitoring`` gives Prometheus and Grafana: legal, and of services that there are."""

import json
from pathlib import Path
from typing import Any

import yaml

from support import shows

pytestmark = shows("containers", "observability", "compose-variants")

TREE = Path(__file__).parents[3]
FILES = TREE / "docker/monitoring"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((TREE / "docker-compose.yml").read_text())["services"]
PROMETHEUS = yaml.safe_load((FILES / "prometheus.yml").read_text())


def mounts(service: str) -> dict[str, Path]:
    """What of this tree is mounted in a service, by its path there."""
    words = [volume.split(":") for volume in SERVICES[service]["volumes"] if volume.startswith("./")]
    return {inside: TREE / outside for outside, inside, mode in words if mode == "ro"}


def test_each_target_is_a_service_that_shares_a_network_with_prometheus() -> None:
    for job in PROMETHEUS["scrape_configs"]:
        (target,) = job["static_configs"][0]["targets"]
        service = SERVICES[target.partition(":")[0]]
        assert set(service["networks"]) & set(SERVICES["prometheus"]["networks"]), target
        file = job.get("authorization", {}).get("credentials_file")
        assert (file == "/run/secrets/metrics-token") == (job["job_name"] == "rdukit-gateway")
    assert SERVICES["prometheus"]["secrets"] == ["metrics-token"]


def test_grafana_finds_the_data_source_and_both_dashboards() -> None:
    there = mounts("grafana")
    (source,) = yaml.safe_load(there["/etc/grafana/provisioning/datasources/rdukit.yaml"].read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    provisioning = there["/etc/grafana/provisioning/dashboards/rdukit.yaml"].read_text()
    (provider,) = yaml.safe_load(provisioning)["providers"]
    found = sorted(there[provider["options"]["path"]].glob("*.json"))
    assert [json.loads(path.read_text())["uid"] for path in found] == ["rdukit-node", "rdukit-platform"]
    assert all(path.is_file() or path.is_dir() for path in there.values())
