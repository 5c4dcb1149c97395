"""Alerts and dashboards: each alert is tried and says where to read on, and all ask for metrics that exist."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rdukit_node.telemetry.exporter import METRICS as NODE_METRICS
from rdukit_platform.gateway.metrics import METRICS as PLATFORM_METRICS
from rdukit_platform.gateway.metrics import PART_UP, QUEUE_AGE, USE, format_metrics
from rdukit_platform.gateway.middleware import REQUESTS, SECONDS
from support import shows

pytestmark = shows("observability", "alerts", "metrics")

FILES = Path(__file__).parents[3] / "charts/rdukit/files"
MANUAL = (Path(__file__).parents[3] / "docs/alerts.md").read_text()
RULES = [rule for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
CASES = Path(__file__).with_name("alerts_test.yaml")
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted((FILES / "dashboards").glob("*.json"))}
METRICS = {
    *(metric.name for metric in PLATFORM_METRICS), *NODE_METRICS,
    *(sample.name for family in (*REQUESTS.describe(), *SECONDS.describe()) for sample in family.samples),
    "rdukit_gateway_requests_total", "rdukit_gateway_request_seconds_bucket",
}  # fmt: skip


def metrics_in(expression: str) -> set[str]:
    """Names of metrics in a query."""
    return set(re.findall(r"\b(?:rdukit|sambanova)_\w+", re.sub(r'"[^"]*"', "", expression)))


def test_each_alert_is_tried_to_fire_and_to_stay_silent() -> None:
    tried: dict[str, set[bool]] = {}
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        for one in case["alert_rule_test"]:
            tried.setdefault(one["alertname"], set()).add(bool(one.get("exp_alerts")))
    assert tried == {rule["alert"]: {True, False} for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_says_what_it_is_about_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["annotations"]["summary"].endswith(".")
    assert rule["annotations"]["runbook_url"] == f"docs/alerts.md#{rule['alert'].lower()}"
    assert f"\n## {rule['alert']}\n" in MANUAL
    assert metrics_in(rule["expr"]) <= METRICS
    assert metrics_in(rule["expr"])


@pytest.mark.parametrize("name", DASHBOARDS)
def test_all_panels_of_a_dashboard_ask_metrics_that_exist_and_do_not_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARDS[name]["panels"]:
        for target in panel["targets"]:
            asked = metrics_in(target["expr"])
            assert asked, panel["title"]
            assert asked <= METRICS, panel["title"]
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        is_emulated = any("emulated" in target["expr"] for target in panel["targets"])
        assert is_emulated == ("emulated" in panel["title"])


def test_gauges_and_counters_are_written_as_prometheus_reads_them() -> None:
    use = {("lab", "chat", 'a"b'): 3.0}
    text = format_metrics([(PART_UP, {("broker",): 1.0}), (USE["requests"], use), (QUEUE_AGE, {(): 90.25})]).decode()
    assert 'rdukit_part_up{part="broker"} 1.0\n' in text
    assert "# TYPE rdukit_endpoint_requests_total counter\n" in text
    assert 'rdukit_endpoint_requests_total{endpoint="chat",model="a\\"b",tenant="lab"} 3.0\n' in text
    assert text.endswith("# TYPE rdukit_queue_oldest_seconds gauge\nrdukit_queue_oldest_seconds 90.25\n")
