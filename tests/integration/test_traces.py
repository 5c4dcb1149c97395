"""One trace from the caller's request to the device's sections, at a real collector and by ``rdukit job trace``."""

import json

import pytest

from rdukit.telemetry.spans import find_traceparent
from support import shows
from support.otlp import ReceivedSpan, http_collector
from support.platform.processes import platform_under_test, short_folder

pytestmark = [shows("observability", "jobs", "native"), pytest.mark.long]

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def names_up(span: ReceivedSpan, by_id: dict[str, ReceivedSpan]) -> list[str]:
    """Return the names from a span to the first of its trace."""
    found = [span.name]
    while span.parent_id in by_id:
        span = by_id[span.parent_id]
        found.append(span.name)
    return found


def test_a_request_is_one_trace_down_to_its_sections_and_its_log_lines_name_it() -> None:
    environment = {
        "RDUKIT_KERNELS": "portable", "RDUKIT_LOG_LEVEL": "INFO", "RDUKIT_LOG_FORMAT": "json",
        "RDUKIT_TELEMETRY_RUN_SPANS": "2", "RDUKIT_TELEMETRY_SECTIONS": "1",
    }  # fmt: skip
    sent = find_traceparent(TRACEPARENT)
    assert sent is not None
    with http_collector() as collector, short_folder() as home:
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        with platform_under_test(home, None, environment) as platform:
            steps = [
                {"name": "preprocess", "box": "logreg", "verb": "preprocess"},
                {"name": "compile", "box": "logreg", "verb": "compile", "parameters": {"mode": "o1"}},
                {
                    "name": "train", "box": "logreg", "verb": "train", "parameters": {"max_steps": 5},
                    "inputs": {"pef": "@compile.pef", "dataset": "@preprocess.dataset"},
                },
            ]  # fmt: skip
            http = platform.client._http
            answer = http.post(
                "/v1/pipelines", json={"name": "p", "steps": steps}, headers={"traceparent": TRACEPARENT}
            )  # fmt: skip
            jobs = {job["step"]: job["id"] for job in answer.raise_for_status().json()["jobs"]}
            for job in jobs.values():
                assert platform.wait_end(job)["state"] == "succeeded"
            told = {step: http.get(f"/v1/jobs/{job}/trace").raise_for_status().json() for step, job in jobs.items()}
            spans = collector.wait_for("POST /v1/pipelines", "queued", "box train", "device", "evaluate")
        files = [file for file in home.rglob("*.log") if file.is_file()]
        logs = {str(file.relative_to(home)): file.read_text().splitlines() for file in files}
    ours = [span for span in spans if span.trace_id == sent.trace_id]
    by_id = {span.span_id: span for span in ours}
    (request,) = [span for span in ours if span.name == "POST /v1/pipelines"]
    assert request.parent_id == sent.span_id
    assert request.attributes["http.response.status_code"] == 201
    section = next(span for span in ours if span.name.startswith("section ") and "box train" in names_up(span, by_id))
    above = names_up(section, by_id)
    assert above[1].startswith("run "), above
    assert above[2:] == ["device", "box train", "run train", "attempt 1", "POST /v1/pipelines"]
    native = next(span for span in ours if span.name == "build native kernels")
    assert names_up(native, by_id)[1:] == ["compile", "box compile", "run compile", "attempt 1", "POST /v1/pipelines"]
    assert {span.service for span in ours} == {"rdukit-gateway", "rdukit-scheduler", "rdukit-worker"}
    assert sum(span.name == "queued" for span in ours) == 3
    device = next(span for span in ours if span.name == "device" and "box train" in names_up(span, by_id))
    assert device.attributes["rdukit.runs"] >= 5
    assert device.attributes["rdukit.emulated.cycles"] > 0
    runs = [span for span in ours if span.name.startswith("run ") and span.parent_id == device.span_id]
    assert len(runs) == 2

    for step, trace in told.items():
        assert trace["trace_id"] == sent.trace_id
        shown = {span["span_id"]: span for span in trace["spans"]}
        assert trace["spans"][0]["name"] == f"job logreg {step}"
        assert all(span["parent_id"] in shown for span in trace["spans"][1:])
        assert f"box {step}" in {span["name"] for span in trace["spans"]}
        assert {key for key, span in shown.items() if span["service"] == "box"} <= set(by_id)

    text = {name: [line for line in lines if not line.startswith("{")] for name, lines in logs.items()}
    assert {name: lines for name, lines in text.items() if lines} == {}
    said = {name: [json.loads(line) for line in lines] for name, lines in logs.items()}
    services = {name: {line["service"] for line in lines} for name, lines in said.items()}
    for part in ("gateway", "scheduler", "worker", "snd", "valkey"):
        assert services[f"logs/{part}.log"] == {part}
    assert said["logs/valkey.log"][-1]["message"].endswith("bye bye...")
    lines = said["logs/worker.log"]
    begun = {line["job"]: line for line in lines if line["message"].startswith("attempt begins")}
    assert set(begun) == set(jobs.values())
    for line in begun.values():
        assert line["trace_id"] == sent.trace_id
        assert by_id[line["span_id"]].name == "attempt 1"
        assert (line["service"], line["attempt"]) == ("worker", "1")
