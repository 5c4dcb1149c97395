"""The console's pure parts: cookie, curve, tiles, words."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdukit_platform.catalog.figures import figure_text
from rdukit_platform.cli.show import describe_attempt, describe_progress
from rdukit_platform.console import curve
from rdukit_platform.console.access import ConsoleSession, find_session, seal
from rdukit_platform.console.curve import draw_curve, draw_metrics, metric_text, metric_title, nice_ticks
from rdukit_platform.console.page import safe_next
from rdukit_platform.console.queries import drain_words
from rdukit_platform.console.run_form import read_time, submit_command
from rdukit_platform.console.tiles import draw_node
from rdukit_platform.console.views import (
    REASONS,
    TONES,
    age_words,
    attempt_words,
    fault_of,
    group_steps,
    log_lines,
    progress_words,
    result_figures,
    tile_words,
    view_events,
    view_job,
    why_words,
)
from rdukit_platform.jobs.schemas import Attempt, EventRecord, Job
from rdukit_platform.jobs.states import JobReason, JobState
from support import shows

pytestmark = shows("console")

KEY = b"k" * 32
SESSION = ConsoleSession("ab" * 32, 2000.0)
LOSSES = st.lists(st.tuples(st.integers(0, 10_000), st.floats(1e-6, 1e6)), max_size=900)


def job(**changes: object) -> Job:
    return Job.model_validate(
        {
            "id": "job-1", "name": "train", "box": "logreg", "verb": "train", "state": "running", "reason": None,
            "error": None, "waits_for": None, "parameters": {}, "inputs": {}, "outputs": {}, "result": None,
            "progress": None, "tiles": 1, "attempt": 1, "max_attempts": 3, "pipeline": None, "step": None,
            "version": 1, "created_at": 100.0, "queued_at": 101.0, "started_at": 102.0, "ended_at": None,
        } | changes
    )  # fmt: skip


def test_the_jobs_of_a_fan_out_stand_together_and_every_step_says_what_it_comes_after() -> None:
    steps = {
        "build": {}, "train[0]": {"pef": "@build.pef", "data": "@build.data"}, "train[1]": {"pef": "@build.pef"},
        "judge": {"checkpoint": "@train[max: held.accuracy].checkpoint", "data": "@build.data"},
    }  # fmt: skip
    groups = group_steps(view_job(job(step=step, references=references), 0.0) for step, references in steps.items())
    assert [(group.name, group.words, [view.after for view in group.views]) for group in groups] == [
        ("build", "", [""]),
        ("train", "2 jobs: 2 running", ["build", "build"]),
        ("judge", "", ["train[max: held.accuracy], build"]),
    ]


def event(kind: str, **data: object) -> EventRecord:
    return EventRecord.model_validate({"sequence": 1, "kind": kind, "at": 0.0, "attempt": 1, "data": data})


def test_a_session_comes_back_from_its_cookie_until_it_ends() -> None:
    cookie = seal(SESSION, KEY)
    assert find_session(cookie, KEY, 1999.0) == SESSION
    assert find_session(cookie, KEY, 2000.0) is None


@pytest.mark.parametrize("cookie", [None, "", "x", "a.b", "é.ü", seal(SESSION, b"other" * 8), seal(SESSION, KEY)[:-1]])
def test_a_cookie_that_is_not_ours_is_no_session(cookie: str | None) -> None:
    assert find_session(cookie, KEY, 0.0) is None


@settings(max_examples=40)
@given(st.text(max_size=60))
def test_any_text_as_a_cookie_is_no_session(text: str) -> None:
    assert find_session(text, KEY, 0.0) is None


@pytest.mark.parametrize(
    ("path", "safe"),
    [
        ("/console/nodes", "/console/nodes"), ("/console/jobs/job-1", "/console/jobs/job-1"), ("", "/console/"),
        ("https://elsewhere/console/", "/console/"), ("//elsewhere/", "/console/"),
        ("/console//elsewhere", "/console/"),
        ("/console/\\elsewhere", "/console/"), ("/console/login", "/console/"), ("/v1/jobs", "/console/"),
    ],
)  # fmt: skip
def test_after_the_login_only_the_consoles_pages_are_opened(path: str, safe: str) -> None:
    assert safe_next(path) == safe


@pytest.mark.parametrize("points", [[], [(1, 0.5)], [(1, 0.5), (1, 0.4)], [(1, float("nan")), (2, 0.4)]])
def test_fewer_than_two_places_make_no_curve(points: list[tuple[float, float]]) -> None:
    assert draw_curve(points) is None


@settings(max_examples=60)
@given(LOSSES)
def test_a_curve_stays_inside_its_picture(points: list[tuple[float, float]]) -> None:
    drawn = draw_curve(points)
    if drawn is None:
        return
    places = [tuple(map(float, place.split(","))) for place in drawn.line[1:].split("L")]
    assert len(places) <= curve.MAX_POINTS
    for x, y in places:
        assert curve.LEFT - 0.1 <= x <= curve.WIDTH - curve.RIGHT + 0.1
        assert curve.TOP - 0.1 <= y <= curve.HEIGHT - curve.BOTTOM + 0.1
    assert drawn.y_ticks
    assert drawn.last_value == dict(points)[max(dict(points))]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("loss", 0.28512, "0.2851"), ("throughput", 41_000.0, "41,000 samples/s"), ("step_seconds", 0.0021, "2.1 ms"),
     ("accuracy", 0.915, "91.5 %"), ("peak_bytes", 2048, "2 KiB")],
)  # fmt: skip
def test_values_of_curves_have_their_units(name: str, value: float, text: str) -> None:
    assert metric_text(name, value) == text


def test_a_step_that_comes_again_after_a_resume_replaces_its_value() -> None:
    drawn = draw_curve([(1, 3.0), (2, 2.0), (3, 9.0), (2, 1.5), (3, 1.0)])
    assert drawn is not None
    assert (drawn.first_value, drawn.last_value) == (3.0, 1.0)


@pytest.mark.parametrize(("low", "high", "ticks"), [(0, 2.3, [0, 1, 2, 3]), (0, 1250, [0, 250, 500, 750, 1000, 1250])])
def test_ticks_are_round_numbers_that_span_the_values(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high, len(ticks) - 1) == ticks


def tile(path: str, lease: str | None = None, health: str = "Online") -> dict[str, object]:
    return {"path": path, "lease": lease, "application": "a" if lease else None, "health": health}


def test_each_holder_has_its_colour_and_its_line() -> None:
    tiles = [
        tile("/NODE/XRDU_0/RDU_0/TILE_0", "l1"), tile("/NODE/XRDU_0/RDU_0/TILE_1", "l2"),
        tile("/NODE/XRDU_0/RDU_1/TILE_0"), tile("/NODE/XRDU_1/RDU_0/TILE_0", None, "Faulted"),
    ]  # fmt: skip
    leases = [
        {"id": "l1", "application": "train", "tenant": "one", "memory_bytes": 1 << 30, "job": "job-1"},
        {"id": "l2", "application": "train", "tenant": "two", "memory_bytes": 0},
    ]
    node = draw_node(tiles, leases, {"used": 1 << 30, "total": 4 << 30})
    assert [name for name, _ in node.xrdus] == ["XRDU 0", "XRDU 1"]
    squares = [square for _, rdus in node.xrdus for rdu in rdus for square in rdu.tiles]
    assert [square.style for square in squares] == ["c0", "c1", "free", "bad"]
    assert [(h.tenant, h.tiles, h.memory, h.job) for h in node.holders] == [
        ("one", 1, "1 GiB", "job-1"),
        ("two", 1, "0 B", None),
    ]
    assert (node.tiles_used, node.tiles_total, node.memory_text) == (2, 4, "1 GiB of 4 GiB")


def test_leases_of_one_tenant_and_application_share_a_colour_and_a_lease_nobody_knows_is_shown() -> None:
    tiles = [tile(f"/NODE/XRDU_0/RDU_0/TILE_{i}", lease) for i, lease in enumerate(["l1", "l2", "ghost"])]
    leases = [{"id": i, "application": "serve", "tenant": "one"} for i in ("l1", "l2")]
    node = draw_node(tiles, leases, {})
    assert [holder.style for holder in node.holders] == ["c0", "c0", "c1"]
    assert node.holders[2].application == "ghost"


def test_an_attempt_that_the_hardware_ended_names_its_fault() -> None:
    error = {"code": "tile-fault", "message": "a tile hangs", "detail": {"fault_uuid": "f-1"}}
    attempt = Attempt(
        number=1, worker="w", outcome="box-failed", error=error, tiles=["/NODE/XRDU_0/RDU_0/TILE_0"], published_at=1.0,
        claimed_at=2.0, started_at=3.0, ended_at=4.0,
    )  # fmt: skip
    assert (attempt_words(attempt), fault_of(attempt)) == ("box-failed: a tile hangs [tile-fault]", "f-1")
    assert describe_attempt(attempt.model_dump()) == (
        "attempt 1  box-failed on w, 1 tile from /NODE/XRDU_0/RDU_0/TILE_0: a tile hangs [tile-fault]"
    )
    crashed = attempt.model_copy(update={"error": {"code": "child-died", "message": "it was killed"}})
    assert fault_of(crashed) == ""


def test_every_state_has_a_colour_and_every_reason_words() -> None:
    assert set(TONES) == set(JobState)
    assert set(REASONS) == set(JobReason)


def test_a_running_job_shows_how_far_it_is() -> None:
    progress = {"stage": "train", "step": 250, "total": 1000, "loss": 0.51234, "eta_s": 12.0}
    view = view_job(job(progress=progress), now=112.0)
    assert (view.percent, view.took, view.tone, view.is_final) == (25, "10 s", "busy", False)
    assert view.progress == "train · 250 of 1000 · loss 0.5123 · 12 s to go"


@pytest.mark.parametrize("progress", [None, {}, {"step": 3}, {"step": 3, "total": 0}, {"step": "x", "total": "y"}])
def test_progress_that_cannot_be_told_is_no_percentage(progress: dict[str, object] | None) -> None:
    assert view_job(job(progress=progress), now=112.0).percent is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": "queued", "waits_for": "2 tiles, of which 1 is free"}, "2 tiles, of which 1 is free"),
        ({"state": "submitted"}, "Waiting for its inputs"),
        ({"state": "running"}, ""),
        (
            {"state": "failed", "reason": "box-failed", "error": {"code": "x", "message": "no such file"}},
            "The ModelBox rejected the request: no such file",
        ),
        ({"state": "cancelled", "reason": "cancelled-by-user"}, "Cancelled by a user"),
    ],
)
def test_a_job_says_why_it_is_where_it_is(changes: dict[str, object], words: str) -> None:
    assert why_words(job(**changes)) == words


def test_the_timeline_has_the_changes_of_state_with_their_reasons() -> None:
    lines = view_events(
        [
            event("state", to="running", event="start", worker="w1", tiles=["/NODE/XRDU_0/RDU_1/TILE_2"]),
            event("progress", step=1, loss=2.0),
            event("state", to="failed", event="fail", reason="box-failed", error={"message": "out of paper"}),
            event("state", to="somewhere"),
        ]
    )
    assert [line.title for line in lines] == ["running, attempt 1", "failed, attempt 1", "somewhere, attempt 1"]
    assert lines[0].detail == "worker w1 · XRDU_0/RDU_1 tile 2"
    assert lines[1].detail == "The ModelBox rejected the request · out of paper"


def test_the_last_lines_are_picked_from_the_events() -> None:
    events = [event("progress", step=1, loss=2.5), event("log", line="hello"), event("log", line="bye")]
    assert [line for _, _, line in log_lines(events)] == ["hello", "bye"]
    assert [line for _, _, line in log_lines(events, limit=1)] == ["bye"]


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_loss_that_is_no_number_is_shown_and_not_drawn(word: str) -> None:
    progress = {"stage": "train", "step": 7, "total": 9, "loss": word, "throughput": word, "eta_s": word}
    assert view_job(job(progress=progress), 110.0).progress == f"train · 7 of 9 · loss {word}"
    assert describe_progress(progress) == f"train 7/9 loss {word}"
    drawn = draw_metrics([progress, {"step": 8, "loss": 2.0}, {"step": 9, "loss": 1.0}])
    assert [(name, curve.first_value) for name, curve in drawn] == [("loss", 2.0)]
    assert [(f.name, f.value) for f in result_figures({"held_out_loss": word})] == [("held out loss", word)]


def test_figures_have_units_and_emulated_ones_say_so() -> None:
    figures = result_figures({"emulated_seconds": 0.39, "accuracy": 0.9142, "steps": 1250, "confusion": [[1]]})
    assert [(f.name, f.value, f.is_projected) for f in figures] == [
        ("accuracy", "91.4 %", False), ("steps", "1,250", False), ("emulated seconds", "390 ms", True),
    ]  # fmt: skip
    assert figure_text("samples_per_s", 1500.25) == "1,500 samples/s"
    assert figure_text("region_bytes", 2048) == "2 KiB"
    assert figure_text("resumed", True) == "True"


def test_tiles_are_named_by_rdu() -> None:
    assert tile_words([f"/NODE/XRDU_0/RDU_1/TILE_{i}" for i in range(3)]) == "XRDU_0/RDU_1 tiles 0–2"
    assert tile_words([]) == ""


@pytest.mark.parametrize(
    ("at", "words"), [(None, "–"), (999.0, "just now"), (970.0, "30 s ago"), (700.0, "5 min ago"), (-9000.0, "2 h ago")]
)
def test_ages_are_in_words(at: float | None, words: str) -> None:
    assert age_words(at, 1000.0) == words


def test_a_year_as_run_limit_is_written_so_that_the_form_and_the_command_line_read_it() -> None:
    command = submit_command("logreg", "train", {}, {}, {"run_limit_s": 365 * 86400.0})
    assert command == "rdukit job submit logreg train --run-limit 31536000"
    assert read_time(command.split()[-1]) == 365 * 86400


def test_all_metrics_that_were_told_at_two_steps_have_a_curve_the_loss_first() -> None:
    told = [
        {"stage": "train", "step": step, "total": 9, "loss": 3.0 - step, "accuracy": step / 4, "eta_s": 9 - step}
        for step in range(1, 4)
    ] + [{"stage": "compile", "loss": 0.0}, {"step": 3, "held_out_loss": 1.0}]  # fmt: skip
    drawn = draw_metrics(told)
    assert [(name, curve.first_value, curve.last_value) for name, curve in drawn] == [
        ("loss", 2.0, 0.0), ("accuracy", 0.25, 0.75),
    ]  # fmt: skip
    assert [metric_title(name) for name in ("loss", "held_out_loss")] == ["Training loss", "Held out loss"]


def test_a_drain_is_told_to_whom_it_ends() -> None:
    drain = {"component": "/NODE/XRDU_0", "state": "draining", "deadline": 60 * 10**9, "reason": "firmware"}
    tiles = ["/NODE/XRDU_0/RDU_1/TILE_0"]
    assert drain_words([drain], tiles) == (
        "Its tiles are being drained (firmware). If it still runs at 1970-01-01 00:01:00 UTC, its attempt is ended and "
        "the job queued again."
    )
    for other in ({**drain, "deadline": None}, {**drain, "state": "cordoned"}, {**drain, "component": "/NODE/XRDU_01"}):
        assert drain_words([other], tiles) == ""
    assert drain_words(None, tiles) == drain_words([drain], []) == ""


def test_a_trial_that_runs_says_how_far_it_is() -> None:
    told = {"stage": "train", "step": 3, "total": 12, "loss": 0.5}
    assert progress_words(told, JobState.RUNNING) == "train · 3 of 12 · loss 0.5"
    assert progress_words(told, JobState.SUCCEEDED) == progress_words({}, JobState.RUNNING) == ""
