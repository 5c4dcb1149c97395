"""Facts about how a job is queued, as people read them (pure): the same for the command line and the console."""

from collections.abc import Iterator, Mapping
from typing import Any

from rdukit.units import format_date, format_seconds


def queue_facts(job: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return name and text of each fact that a job has, of its description as REST gives it; labels are not there."""
    return [(name, text) for name, text in _each(job) if text]


def _each(job: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "priority", str(job["priority"] or "")
    yield "preemptible", "yes" if job["preemptible"] else ""
    yield "preempted", _times(job["preemptions"])
    yield "run limit", f"{format_seconds(job['run_limit_s'])} an attempt" if job["run_limit_s"] else ""
    yield "deadline", f"{format_date(job['deadline_at'])} UTC" if job["deadline_at"] else ""
    for key, value in (job["retry"] or {}).items():
        yield f"retry {key.replace('_', ' ')}", ", ".join(value) if isinstance(value, list) else f"{value:g}"
    yield "profile", "yes" if job["profile"] else ""
    yield "constraint", ", ".join(f"{key}={value}" for key, value in job["constraint"].items())


def _times(number: int) -> str:
    return f"{number} {'time' if number == 1 else 'times'}" if number else ""
