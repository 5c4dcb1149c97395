"""Prometheus takes what is written for it: alerts, which fire when they should, metrics, its configuration."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rdukit_platform.gateway.metrics import METRICS as PLATFORM_METRICS
from rdukit_platform.gateway.metrics import format_metrics
from support import shows

pytestmark = shows("observability", "operations")

TREE = Path(__file__).parents[2]
FILES = TREE / "charts/rdukit/files"
CASES = TREE / "tests/unit/charts/alerts_test.yaml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((TREE / "docker-compose.yml").read_text())["services"]
PROMETHEUS = yaml.safe_load((TREE / "docker/monitoring/prometheus.yml").read_text())


def promtool(*arguments: str, folder: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool; it is in Debian's package prometheus")
    return subprocess.run([found, *arguments], cwd=folder, input=text, capture_output=True, text=True, check=False)


def test_prometheus_takes_the_alerts_and_each_fires_when_it_should(tmp_path: Path) -> None:
    shutil.copy(FILES / "alerts.yaml", tmp_path)
    shutil.copy(CASES, tmp_path)
    checked = promtool("check", "rules", "alerts.yaml", folder=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    # What an alert says is the summary's affair: labels and times are compared.
    rules = yaml.safe_load((tmp_path / "alerts.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(rules))
    tried = promtool("test", "rules", CASES.name, folder=tmp_path)
    assert tried.returncode == 0, tried.stdout + tried.stderr


def test_prometheus_objects_to_none_of_the_platforms_metrics(tmp_path: Path) -> None:
    text = format_metrics([(metric, {("x",) * len(metric.labels): 1.5}) for metric in PLATFORM_METRICS]).decode()
    checked = promtool("check", "metrics", folder=tmp_path, text=text)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def mounts(service: str) -> dict[str, Path]:
    """What of this tree is mounted in a service, by its path there."""
    words = [volume.split(":") for volume in SERVICES[service]["volumes"] if volume.startswith("./")]
    return {inside: TREE / outside for outside, inside, mode in words if mode == "ro"}


def test_prometheus_takes_its_configuration_with_the_alerts_of_the_chart(tmp_path: Path) -> None:
    there = mounts("prometheus")
    text = there["/etc/prometheus/prometheus.yml"].read_text()
    (rules,) = PROMETHEUS["rule_files"]
    (tmp_path / "token").write_text("rdk_x")
    text = text.replace(rules, str(there[rules])).replace("/run/secrets/metrics-token", str(tmp_path / "token"))
    (tmp_path / "prometheus.yml").write_text(text)
    checked = promtool("check", "config", str(tmp_path / "prometheus.yml"), folder=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "16 rules found" in checked.stdout
