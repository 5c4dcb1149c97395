"""Facts about how a job is queued, as people read them (pure): the same for the command line and the console."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rdukit.units import format_date, format_seconds
from rdukit_platform.jobs.fields import CHOICES

#: Fields that both faces show in places of their own.
_SHOWN_ELSEWHERE: Final = {"tiles", "members", "max_attempts"}


def queue_facts(job: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return name and text of each fact of a job as REST describes it; labels are left out."""
    return [(name, text) for name, text in _each(job) if text]


def _each(job: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for choice in CHOICES:
        if choice.name not in _SHOWN_ELSEWHERE:
            yield choice.label, ", ".join(choice.write(job.get(choice.name)))
    yield "preempted", _times(job["preemptions"])
    yield "run limit", f"{format_seconds(job['run_limit_s'])} an attempt" if job["run_limit_s"] else ""
    yield "deadline", f"{format_date(job['deadline_at'])} UTC" if job["deadline_at"] else ""
    for key, value in (job["retry"] or {}).items():
        yield f"retry {key.replace('_', ' ')}", ", ".join(value) if isinstance(value, list) else f"{value:g}"


def _times(number: int) -> str:
    return f"{number} {'time' if number == 1 else 'times'}" if number else ""
