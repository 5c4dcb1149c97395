"""The manual's pages on Kubernetes name values that the chart takes, and the chart takes only platforms that exist."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rdukit.hardware import NODES
from support import shows

pytestmark = shows("kubernetes", "kubernetes-jobs")

CHECKOUT = Path(__file__).parents[3]
CHART = CHECKOUT / "charts" / "rdukit"
PAGE = "\n".join((CHECKOUT / f"docs/{name}.md").read_text() for name in ("kubernetes", "kubernetes-jobs"))
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
#: Files, not values.
NO_VALUES = {"values.yaml", "values.schema"}


def with_value(name: str, value: object) -> dict[str, Any]:
    """The chart's values with another one, as ``--set`` puts it there."""
    values = copy.deepcopy(VALUES)
    *folders, last = name.split(".")
    place = values
    for folder in folders:
        place = place[folder]
    assert last in place, f"the chart has no value {name}"
    place[last] = value
    return values


def named_values() -> list[tuple[str, str]]:
    """Names with dots in code of the page, with the value behind a colon or an equals sign, if any."""
    inline = re.findall(r"`([a-z]\w*(?:\.\w+)+)(?:: ([^`]+))?`", PAGE)
    options = re.findall(r"--set ([\w.]+)=([^\s`]+)", PAGE)
    return sorted({(name, value) for name, value in [*inline, *options] if name not in NO_VALUES})


@pytest.mark.parametrize(("name", "text"), named_values(), ids=str)
def test_the_chart_takes_each_value_that_the_page_names(name: str, text: str) -> None:
    if text:
        jsonschema.validate(with_value(name, yaml.safe_load(text)), SCHEMA)
    else:
        with_value(name, None)


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_the_chart_takes_the_examples_of_the_page(text: str) -> None:
    given = yaml.safe_load(text)
    if set(given) <= set(VALUES):
        jsonschema.validate({**VALUES, **given}, SCHEMA)


def test_the_chart_takes_every_platform_and_no_other_name() -> None:
    assert SCHEMA["properties"]["node"]["properties"]["platform"]["enum"] == list(NODES)
    with pytest.raises(jsonschema.ValidationError, match="'SN99-8' is not one of"):
        jsonschema.validate(with_value("node.platform", "SN99-8"), SCHEMA)


def test_the_commands_of_the_page_name_objects_images_and_labels_of_the_chart() -> None:
    objects = set(re.findall(r"(deployment|service)/demo-rdukit-(\w+)", PAGE))
    assert objects == {("deployment", "gateway"), ("service", "gateway")}
    for kind, name in objects:
        template = (CHART / f"templates/{name}.yaml").read_text()
        assert f"kind: {kind.capitalize()}\n" in template and f'printf "%s-{name}"' in template
    repositories = {image["repository"] for image in VALUES["images"].values() if isinstance(image, dict)}
    (images,) = re.findall(r"^for image in (.*); do$", PAGE, re.MULTILINE)
    assert {f"rdukit/{name}" for name in images.split()} == repositories - {"postgres"}
    assert f"needs `postgres:{VALUES['images']['postgresql']['tag']}`" in PAGE
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert set(re.findall(r"/rdukit/\$image:(\S+)", PAGE)) == {version}
    labels = dict(re.findall(r"kubectl label node .* (rdukit\.dev/\w+)=(\w+)", PAGE))
    assert labels == VALUES["node"]["nodeSelector"] | VALUES["nodes"]["nodeSelector"]
