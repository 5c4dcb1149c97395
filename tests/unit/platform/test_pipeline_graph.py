"""A pipeline file's schema, table and picture: of the manual's own example."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from rdukit.errors import InvalidArgument
from rdukit_platform.artifacts.picture import HEIGHT, WIDTH, draw_graph, place
from rdukit_platform.cli.pipeline_graph import graph
from rdukit_platform.jobs.schemas import PipelineRequest
from rdukit_platform.jobs.steps_picture import StepSeen, draw_steps, graph_of_steps
from support import shows
from support.pages import DOCS, code_blocks, read_page

pytestmark = shows("pipeline", "pipelines")

PAGE = read_page("pipelines.md")
EXAMPLES = code_blocks(PAGE, "yaml")


def shown(*words: str) -> str:
    return CliRunner().invoke(graph, words, catch_exceptions=False).output


def test_the_schema_takes_what_the_manual_shows_and_what_the_platform_takes() -> None:
    schema = json.loads((DOCS / "pipeline.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    assert EXAMPLES
    for text in EXAMPLES:
        body = yaml.safe_load(text)
        assert list(validator.iter_errors(body)) == []
        PipelineRequest.model_validate(body)
    body["steps"][0]["colour"] = "red"
    assert [error.validator for error in validator.iter_errors(body)] == ["additionalProperties"]


def test_the_manuals_example_is_shown_as_the_manual_says(tmp_path: Path) -> None:
    file, svg = tmp_path / "digits.yaml", tmp_path / "digits.svg"
    file.write_text(EXAMPLES[0])
    assert shown(str(file)) in PAGE
    assert shown(str(file), "--svg", str(svg)).endswith("digits.svg: 4 steps, 6 jobs\n")
    assert json.loads(shown(str(file), "--json"))["steps"][3]["after"] == "build, data, train"
    file.write_text(EXAMPLES[0].replace("verb: compile", "verb: compile, cache: false"))
    assert [step["cache"] for step in json.loads(shown(str(file), "--json"))["steps"]] == ["yes", "no", "yes", "yes"]
    text = svg.read_text()
    assert text.startswith("<svg ") and "train ×3" in text and "<title>min held_out_loss, checkpoint</title>" in text
    assert "<style>" in text and "<a " not in text and text.count("<rect ") == 4
    file.write_text(EXAMPLES[0].replace("verb: compile", "verbs: compile"))
    with pytest.raises(InvalidArgument, match=r"steps\[1\].verb is missing.*no key 'verbs' in steps\[1\]"):
        shown(str(file))


def test_steps_of_a_fan_out_are_one_node_and_names_are_text() -> None:
    steps = [StepSeen("a", "x", {}), *(StepSeen(f"b[{n}]", f"s{n % 2}", {"in": "@a.out"}) for n in range(3))]
    nodes, edges = graph_of_steps(steps)
    assert [(node.label, node.sub) for node in nodes] == [("a", "x"), ("b ×3", "2 s0, 1 s1")]
    assert [(edge.source, edge.target, edge.label) for edge in edges] == [("a", "b", "out")]
    assert 'class="lineage"' in draw_steps(steps, "p") and 'class="job"' in draw_steps(steps, "p")
    assert "<script>" not in draw_steps([StepSeen("a", "<script>", {}, "/console/jobs/job-1")], "<script>")


def test_a_step_has_the_colour_of_its_state_and_a_fan_out_that_of_what_is_wrong() -> None:
    steps = [StepSeen("a", "succeeded", {}, tone="good")]
    steps += [StepSeen(f"b[{n}]", tone, {"in": "@a.out"}, tone=tone) for n, tone in enumerate(("good", "bad", "busy"))]
    assert [node.tone for node in graph_of_steps(steps)[0]] == ["good", "bad"]
    assert 'class="job good"' in draw_steps(steps, "p") and 'class="job bad"' in draw_steps(steps, "p")


def test_a_line_passes_the_steps_between_its_ends_and_crosses_none() -> None:
    steps = [
        StepSeen("data", "", {}), StepSeen("build", "", {}),
        StepSeen("train", "", {"pef": "@build.pef", "dataset": "@data.dataset"}),
        StepSeen("judge", "", {"pef": "@build.pef", "dataset": "@data.dataset", "checkpoint": "@train.checkpoint"}),
        StepSeen("report", "", {"dataset": "@data.dataset", "figures": "@judge.figures"}),
    ]  # fmt: skip
    nodes, edges = graph_of_steps(steps)
    placed = place(nodes, edges)
    assert set(placed.lanes) == {("data", 1), ("build", 1), ("data", 2)}
    for lane_x, lane_y in placed.lanes.values():
        beside = [y for x, y in placed.at.values() if x == lane_x]
        assert beside and all(not y <= lane_y <= y + HEIGHT for y in beside)
        assert f"{lane_x},{lane_y}H{lane_x + WIDTH}" in draw_graph(nodes, edges, "p")
    bottom = max([y + HEIGHT for _, y in placed.at.values()] + [y for _, y in placed.lanes.values()])
    assert bottom < placed.height
