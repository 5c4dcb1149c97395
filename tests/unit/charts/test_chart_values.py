"""The chart's values: what is legal, what is documented, and that the templates use nothing else. Needs no Helm."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from support import shows

pytestmark = shows("kubernetes", "settings")

CHART = Path(__file__).parents[3] / "charts/rdukit"
MANUAL = Path(__file__).parents[3] / "docs"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
TEMPLATES = {path.name: path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file()}


def problems(**values: object) -> list[str]:
    """Where values beside the defaults are not valid."""
    found = Draft7Validator(SCHEMA).iter_errors({**VALUES, **values})
    return sorted(".".join(str(part) for part in error.absolute_path) for error in found)


def test_the_defaults_and_the_schema_are_legal() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert problems() == []


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"gateway": {"replicas": "two"}}, "gateway.replicas"),
        ({"gateway": {"service": {"port": 70000}}}, "gateway.service.port"),
        ({"gateway": {"resources": {"requests": {}, "limits": {"cpu": "1"}}}}, "gateway.resources.limits"),
        ({"node": {"nodeSelector": {}}}, "node.nodeSelector"),
        ({"node": {"platfrom": "SN30-8"}}, "node"),
        ({"database": {"kind": "mysql"}}, "database.kind"),
        ({"logLevel": "LOUD"}, "logLevel"),
        ({"settings": {"PATH": "/"}}, "settings"),
        ({"boxes": [{}]}, "boxes.0"),
        ({"boxes": [{"name": "Bad_Name"}]}, "boxes.0.name"),
        ({"boxes": [{"name": "a" * 25}]}, "boxes.0.name"),
        ({"boxes": [{"name": "a", "pef": "ftp://x/y"}]}, "boxes.0.pef"),
        ({"boxes": [{"name": "a", "image": {"repository": "x", "digest": "sha256:12"}}]}, "boxes.0.image.digest"),
        ({"boxes": [{"name": "a", "resources": {"requests": {"cpu": "much"}}}]}, "boxes.0.resources"),
        ({"worker": {"terminationSeconds": 5}}, "worker.terminationSeconds"),
        ({"fullnameOverride": "x" * 31}, "fullnameOverride"),
        ({"unknown": 1}, ""),
    ],
)
def test_wrong_values_are_refused_where_they_are(values: dict[str, object], where: str) -> None:
    assert any(found.startswith(where) for found in problems(**values)), problems(**values)


def test_every_value_has_a_comment() -> None:
    lines = [line for line in (CHART / "values.yaml").read_text().splitlines() if line.strip()]
    for number, line in enumerate(lines):
        key = re.match(r"^ *([A-Za-z]\w*): *\S", line)
        if key is None or key[1] in {"requests", "limits"}:
            continue
        above = [text.lstrip() for text in lines[max(number - 2, 0) : number]]
        is_first_of_its_block = above[-1].endswith(":") and above[0].startswith("#")
        assert above[-1].startswith("#") or is_first_of_its_block, f"{line} needs a comment above it"


def test_templates_use_only_values_that_there_are_and_all_of_them() -> None:
    text = "\n".join(TEMPLATES.values())
    used = {match[1].rstrip(".") for match in re.finditer(r"\.Values\.([A-Za-z.]+)", text)}
    for path in used:
        found: Any = VALUES
        for part in path.split("."):
            assert isinstance(found, dict) and part in found, path
            found = found[part]
    assert {path.split(".")[0] for path in used} == set(VALUES)
    for key in VALUES["boxDefaults"]:
        assert f"$box.{key}" in text or f"box.{key}" in text, key


def test_every_variable_of_the_templates_is_a_setting() -> None:
    documented = set(re.findall(r"`(RDUKIT_[A-Z0-9_]+)`", (MANUAL / "settings.md").read_text()))
    used = {name for text in TEMPLATES.values() for name in re.findall(r"RDUKIT_[A-Z0-9_]+", text)}
    assert used, "the templates set variables"
    assert used <= documented, sorted(used - documented)


def test_images_and_secrets_come_from_values_only() -> None:
    for name, text in TEMPLATES.items():
        for line in text.splitlines():
            if re.match(r"\s*image:", line):
                assert 'include "rdukit.image"' in line, f"{name}: {line}"
        assert "hostPath" not in text and "hostNetwork" not in text, name
