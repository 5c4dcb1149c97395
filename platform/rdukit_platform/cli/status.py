"""The platform's lines of ``rdukit status``: whether it runs, and its jobs."""

from collections.abc import Iterator
from typing import Final

from rdukit.cli.status import PartStatus
from rdukit.errors import RdukitError, Unavailable

#: States of jobs that have not ended, as they are shown.
_OPEN: Final = ("running", "starting", "retrying", "queued", "submitted", "paused")
_MAX_JOBS: Final = 200


def report_platform() -> Iterator[PartStatus]:
    """Ask the gateway that the settings or the home folder name."""
    from rdukit_platform.client.http import ApiClient

    try:
        client = ApiClient.of_home()
    except Unavailable:
        yield PartStatus("platform", "stopped", "not running; start one: rdukit up")
        return
    with client:
        try:
            health = client.get("/health")
        except RdukitError as error:
            is_away = isinstance(error, Unavailable)
            text = "not running; start one: rdukit up" if is_away else error.message
            yield PartStatus("platform", "stopped" if is_away else "unknown", text, {"url": client.url})
            return
        missing = [part for part, is_up in health["parts"].items() if not is_up]
        text = f"{client.url} {health['status']}" + (f", without {', '.join(missing)}" if missing else "")
        yield PartStatus("platform", "running", text, {"url": client.url, "health": health})
        try:
            counts = {s: len(client.get("/v1/jobs", state=s, limit=_MAX_JOBS)["jobs"]) for s in _OPEN}
        except RdukitError as error:
            yield PartStatus("jobs", "unknown", error.message)
            return
        shown = [f"{count}{'+' * (count == _MAX_JOBS)} {state}" for state, count in counts.items() if count]
        yield PartStatus("jobs", "running" if shown else "stopped", ", ".join(shown) or "none open", {"open": counts})
