"""Runs side by side: what differs, what metrics say, and the curves of several on the same axes."""

import pytest

from rdukit.errors import InvalidArgument
from rdukit_platform.cli.job_runs import comparison_rows, metrics_csv
from rdukit_platform.console import curve
from rdukit_platform.console.curve import draw_curve, draw_curves
from rdukit_platform.jobs.compare import MOST, Comparison, Run, compare_runs, read_ids
from rdukit_platform.jobs.metrics import ProgressEvent, Summary, points_of, series_of, show_page, summarize
from rdukit_platform.jobs.schemas import Job
from support import shows

pytestmark = shows("sweeps", "console")


def job(job_id: str, **changes: object) -> Job:
    fields = dict.fromkeys(Job.model_fields) | {
        "id": job_id, "name": "n", "box": "logreg", "verb": "train", "state": "succeeded", "parameters": {},
        "inputs": {}, "outputs": {}, "tiles": 1, "attempt": 1, "max_attempts": 3, "version": 4, "created_at": 10.0,
        "started_at": 12.0, "ended_at": 20.5, "priority": 0, "labels": {}, "result": {},
        "preemptible": False, "preemptions": 0, "references": {}, "members": 1, "constraint": {}, "profile": False,
    }  # fmt: skip
    return Job.model_validate(fields | changes)


def run(job_id: str, *, defaults: dict[str, object] | None = None, loss: float | None = None, **changes: object) -> Run:
    metrics = {} if loss is None else {"loss": Summary(loss, loss / 2, 2 * loss)}
    digests = {"art-1": "same", "art-2": "same", "art-3": "other"}
    return Run(job(job_id, **changes), defaults or {}, metrics, digests)


def differing(comparison: Comparison, part: str) -> dict[str, list[object]]:
    return {line.name: line.values for line in getattr(comparison, part) if line.differs}


def test_a_parameter_that_one_run_left_at_its_default_is_compared_with_the_others_value() -> None:
    defaults: dict[str, object] = {"lr": 0.1, "epochs": 2}
    found = compare_runs(
        [run("a", defaults=defaults, parameters={"lr": 0.5}), run("b", defaults=defaults), run("c", parameters={})]
    )
    assert differing(found, "parameters") == {"lr": [0.5, 0.1, None], "epochs": [2, 2, None]}
    same = compare_runs([run("a", defaults=defaults, parameters={"lr": 0.1}), run("b", defaults=defaults)])
    assert differing(same, "parameters") == {}


def test_results_metrics_and_times_stand_side_by_side() -> None:
    found = compare_runs(
        [run("a", loss=0.5, result={"accuracy": 0.9, "parts": {"x": 1}}),
         run("b", loss=None, result={"accuracy": 0.8, "steps": 3}, ended_at=None)]
    )  # fmt: skip
    assert [(line.name, line.values, line.differs) for line in found.results] == [
        ("accuracy", [0.9, 0.8], True), ("steps", [None, 3], True),
    ]  # fmt: skip
    (loss,) = found.metrics
    assert (loss.last, loss.lowest, loss.highest) == ([0.5, None], [0.25, None], [1.0, None])
    assert {line.name: line.values for line in found.durations} == {
        "waited_s": [2.0, 2.0], "ran_s": [8.5, None], "took_s": [10.5, None],
    }  # fmt: skip


def test_artifacts_differ_where_their_contents_do() -> None:
    found = compare_runs([run("a", inputs={"pef": "art-1", "dataset": "art-1"}, outputs={"checkpoint": "art-1"}),
                          run("b", inputs={"pef": "art-2", "dataset": "art-3"}, outputs={})])  # fmt: skip
    assert [(line.name, line.differs) for line in found.artifacts] == [
        ("input pef", False), ("input dataset", True), ("output checkpoint", True),
    ]  # fmt: skip


def test_two_to_eight_different_runs_are_compared() -> None:
    assert read_ids(["a,b", " c ", "a"]) == ["a", "b", "c"]
    for texts in (["a"], ["a,a"], [], [",".join(f"job-{k}" for k in range(MOST + 1))]):
        with pytest.raises(InvalidArgument, match=f"expected 2 to {MOST}"):
            read_ids(texts)


def test_metrics_are_summed_up_and_what_is_no_number_is_kept_as_its_word() -> None:
    events: list[dict[str, object]] = [
        {"stage": "train", "step": 1, "total": 3, "loss": 2.0}, {"step": 2, "loss": 3.0, "rate": 7},
        {"step": 3, "loss": "NaN", "note": "hot", "done": True},
    ]  # fmt: skip
    assert summarize(events) == {"loss": Summary("NaN", 2.0, 3.0), "rate": Summary(7.0, 7.0, 7.0)}
    assert points_of(events, "loss") == [(1.0, 2.0), (2.0, 3.0)]


def test_a_metrics_points_are_of_the_stage_that_told_it_most_often() -> None:
    events = [
        {"stage": "train", "step": 1, "throughput": 10.0}, {"stage": "evaluate", "step": 63, "throughput": 900.0},
        {"stage": "train", "step": 101, "throughput": 20.0}, {"stage": "evaluate", "step": 63, "accuracy": 0.5},
    ]  # fmt: skip
    assert series_of(events) == {"throughput": [(1.0, 10.0), (101.0, 20.0)], "accuracy": [(63.0, 0.5)]}
    assert points_of(events, "accuracy") == [(63.0, 0.5)] and points_of(events, "none") == []
    assert summarize([{"loss": "Infinity"}]) == {"loss": Summary("Infinity", None, None)}


def test_a_page_of_metrics_says_whether_there_are_more() -> None:
    events = [ProgressEvent(number, 1.0, 1, {"step": number}) for number in (3, 7, 9)]
    page = show_page(events, 2)
    assert ([point.sequence for point in page.points], page.next_after) == ([3, 7], 7)
    assert show_page(events, 3).next_after is None
    assert show_page([], 3).points == []


def test_csv_has_a_column_for_every_name_that_any_event_had() -> None:
    points = [{"at": 1.5, "attempt": 1, "values": {"step": 1, "loss": 0.5}},
              {"at": 2.5, "attempt": 2, "values": {"step": 2, "stage": "a,b", "loss": "NaN"}}]  # fmt: skip
    assert metrics_csv(points) == 'at,attempt,step,loss,stage\n1.5,1,1,0.5,\n2.5,2,2,NaN,"a,b"\n'
    assert metrics_csv([]) == "at,attempt\n"
    assert metrics_csv([{"values": {"step": 1, "loss": 0.5}}, {"values": {"step": 1, "f1": 1}}]) == (
        "step,loss,f1\n1,0.5,\n1,,1\n"
    )


def test_the_commands_table_marks_what_differs_and_leaves_out_the_same_parameters() -> None:
    found = compare_runs([run("a", loss=0.5, parameters={"lr": 0.5, "seed": 1}),
                          run("b", loss=0.25, parameters={"lr": 0.1, "seed": 1})]).model_dump()  # fmt: skip
    rows = {row[0]: row[1:] for row in comparison_rows(found)}
    assert rows["parameter lr"] == ("0.5", "0.1", "differs")
    assert rows["last loss"] == ("0.5", "0.25", "differs")
    assert rows["state"] == ("succeeded", "succeeded", "")
    assert "parameter seed" not in rows
    assert {row[0]: row[1:] for row in comparison_rows(found, show_all=True)}["parameter seed"] == ("1", "1", "")


def test_curves_of_several_runs_share_their_axes_and_stay_inside() -> None:
    drawn = draw_curves([[(1, 4.0), (2, 2.0)], [], [(2, 1.0), (10, 0.5), (10, 0.25)], [(5, 3.0)]])
    assert drawn is not None
    assert [line.last_value for line in drawn.lines] == [2.0, None, 0.25, 3.0]
    assert drawn.lines[1].path == ""
    for line in drawn.lines:
        for place in filter(None, line.path[1:].split("L")):
            x, y = map(float, place.split(","))
            assert curve.LEFT <= x <= curve.WIDTH - curve.RIGHT
            assert curve.TOP <= y <= curve.HEIGHT - curve.BOTTOM
    alone, several = draw_curve([(1, 4.0), (2, 2.0)]), draw_curves([[(1, 4.0), (2, 2.0)]])
    assert alone is not None and several is not None
    assert several.lines[0].path == alone.line


def test_without_two_steps_there_is_no_picture_of_runs() -> None:
    assert draw_curves([[], [(1, 2.0)], [(1, float("nan")), (2, 1.0)]]) is None
