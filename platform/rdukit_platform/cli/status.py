"""The platform's lines of ``rdukit status``: whether it runs, and its jobs."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from rdukit.cli.status import PartStatus
from rdukit.errors import RdukitError, Unavailable
from rdukit.units import format_bytes
from rdukit_platform.cli import connect
from rdukit_platform.settings import current_home

#: States of open jobs, in the order shown.
_OPEN: Final = ("running", "starting", "retrying", "queued", "submitted", "paused")
_MAX_JOBS: Final = 200
#: Number of tokens shown with the highest load on the gateway.
_HEAVIEST: Final = 3


def report_platform() -> Iterator[PartStatus]:
    """Yield the platform's status lines, from the gateway of the settings or the home folder."""
    try:
        client = connect()
    except Unavailable:
        yield _without_answer("")
        return
    with client:
        try:
            health = client.read_health()
        except RdukitError as error:
            if isinstance(error, Unavailable):
                yield _without_answer(client.url, error)
            else:
                yield PartStatus("platform", "unknown", error.message, {"url": client.url})
            return
        missing = [part for part, is_up in health["parts"].items() if not is_up]
        text = f"{client.url} {health['status']}" + (f", without {', '.join(missing)}" if missing else "")
        state = "degraded" if missing else "running"
        yield PartStatus("platform", state, text, {"url": client.url, "health": health})
        try:
            counts = {s: len(client.get("/v1/jobs", state=s, limit=_MAX_JOBS)["jobs"]) for s in _OPEN}
        except RdukitError as error:
            yield PartStatus("jobs", "unknown", error.message)
            return
        shown = [f"{count}{'+' * (count == _MAX_JOBS)} {state}" for state, count in counts.items() if count]
        yield PartStatus("jobs", "running" if shown else "stopped", ", ".join(shown) or "none open", {"open": counts})
        with suppress(RdukitError):  # only administrators see the load
            load = client.get("/v1/load")["load"]
            text = "; ".join(_load_words(each) for each in load[:_HEAVIEST]) or "no requests"
            yield PartStatus("load", "running", text, {"load": load})


def _load_words(load: Mapping[str, Any]) -> str:
    name = " ".join(filter(None, (load["tenant"], load["token"])))
    size = format_bytes(load["bytes_in"] + load["bytes_out"])
    return f"{name} {load['requests']} requests, {size}, {load['seconds']:.1f} s"


def _without_answer(url: str, error: Unavailable | None = None) -> PartStatus:
    """Describe an unreachable platform: starting in this home, not running, or another program has its port."""
    import httpx

    from rdukit_platform.client.contexts import own_url

    home = current_home()
    detail = {"url": url} if url else {}
    if url not in {"", own_url(home)} or home.find_up() is None:
        cause = None if error is None else error.__cause__
        if error is not None and not isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout):
            text = error.message if cause is None else f"the program at {url} is not a gateway"
            return PartStatus("platform", "unknown", text, detail)
        return PartStatus("platform", "stopped", "not running; start one: rdukit up", detail)
    return PartStatus("platform", "starting", f"not ready yet; its logs are in {home.logs}", detail)
