"""Routing of a call (pure): permitted paths, headers passed on and returned, and the replica."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from rdukit.errors import ERROR_HEADER, NotFound
from rdukit_platform.endpoints.usage import read_object
from rdukit_platform.jobs.attempts import NODE_CODES

#: Request headers that a replica gets: no token, cookie or address of the caller.
PASSED: Final = ("content-type", "accept", "inference-header-content-length", "x-request-id")
#: Answer headers that the caller gets; headers that could affect the gateway's own pages are left out.
RETURNED: Final = ("inference-header-content-length", "server-timing", "retry-after", "x-rdukit-expert", "request-id")
#: States of an expert, the readiest first; an endpoint reports the first that any replica has.
_STATES: Final = ("Live", "Starting", "Queued", "Offline")
#: Content types that are passed on unchanged; others become plain bytes, so that no page can run.
TYPES: Final = ("application/json", "text/event-stream", "application/octet-stream")
#: Requests by which a replica with the expert in memory may exceed the least busy replica.
MAX_AHEAD: Final = 4
_TEXT: Final = (
    "chat/completions", "completions", "embeddings", "responses", "messages", "messages/count_tokens",
)  # fmt: skip
#: SambaStudio's routes, below ``api``; the rest of the path is the model, whose name may have a ``/``.
_GENERIC: Final = re.compile("(?P<route>(?:v2/)?predict/generic(?:/stream)?/[^/]+)/(?P<model>.+)")
#: Routes of the Open Inference Protocol below ``v2/models``: metadata, and inference.
_READ: Final = re.compile(r"(?P<model>.+?)(?P<rest>(?:/versions/[^/]+)?(?:/(?:config|ready|stats))?)")
_INFER: Final = re.compile(r"(?P<model>.+?)(?P<rest>(?:/versions/[^/]+)?/(?:infer|rows|images))")
#: Path segments that never belong to a model's name after its first ``/``: they name, or could name, actions.
_NO_NAMES: Final = frozenset(
    ("config", "ready", "stats", "infer", "rows", "images", "load", "unload", "versions", "trace", "generate")
)
_LEGAL: Final = (
    "expected v2/models/MODEL[/versions/V]/infer, the same with /rows or /images, "
    "v2/models/MODEL[/config|/ready|/stats], v2, v2/health/ready, "
    f"v1/models[/MODEL], {', '.join(f'v1/{each}' for each in _TEXT)}, "
    "api[/v2]/predict/generic[/stream]/PROJECT/MODEL"
)


@dataclass(frozen=True, slots=True)
class ReadyReplica:
    """A replica that takes requests."""

    id: str
    revision: int
    address: str
    uid: int | None


def path_at_box(method: str, path: str, endpoint: str, model: str) -> str:
    """Return the path at a replica's box for one below its endpoint.

    Only inference is passed on: callers cannot load models or start jobs in the box.

    Args:
        path: such as ``v2/models/M/infer``, not quoted. The endpoint's name stands for the model's.
    Raises:
        NotFound: no such route is passed on.
    """
    parts = path.split("/")
    is_plain = all(part and part not in {".", ".."} for part in parts) and not set(path) & set("?#%\\\r\n")
    if is_plain:
        match method, parts:
            case "GET", ["v2"] | ["v2", "health", "ready" | "live"] | ["v1", "models", *_]:
                return "/" + path
            case "POST", ["v1", *rest] if "/".join(rest) in _TEXT:
                return "/" + path
            case "GET" | "POST", ["v2", "models", *rest]:
                found = (_READ if method == "GET" else _INFER).fullmatch("/".join(rest))
                if found is not None and not _NO_NAMES & set(found["model"].split("/")[1:]):
                    return f"/v2/models/{model if found['model'] == endpoint else found['model']}{found['rest']}"
            case "POST", ["api", *rest] if found := _GENERIC.fullmatch("/".join(rest)):
                return f"/api/{found['route']}/{model if found['model'] == endpoint else found['model']}"
    raise NotFound(f"{method} {path[:120]!r} is not forwarded to an endpoint; {_LEGAL}")


def body_at_box(path: str, body: bytes, endpoint: str, model: str, known: Collection[str] = ()) -> bytes:
    """Return a request's body for a replica's box: in OpenAI's and Anthropic's, the endpoint's name stands for the
    model's.

    Args:
        path: as of ``path_at_box``, one that is passed on. known: names that the box itself knows; they stay.
    """
    if not path.startswith("v1/") or endpoint in {model, *known}:
        return body
    named, colon, version = str(read_object(body).get("model")).partition(":")
    if named != endpoint:
        return body
    return json.dumps({**json.loads(body), "model": model + colon + version}).encode()  # keeps integers of any size


def is_inference(method: str, path: str) -> bool:
    """Return whether a request below an endpoint is for inference, not for metadata.

    Args:
        path: as for ``path_at_box``; it is passed on.
    """
    return method == "POST" and not path.endswith("/count_tokens")


def choose_revision(wanted: int, canary: int | None, percent: int, turn: int) -> int:
    """Choose the revision for a call: of 100 successive calls, exactly ``percent`` go to the canary."""
    # 61 and 100 are coprime, so the turns are spread, and each of the 100 residues occurs once.
    return canary if canary is not None and turn * 61 % 100 < percent else wanted


def choose_replica(
    ready: Iterable[ReadyReplica], under_way: Mapping[str, int], tried: Collection[str], turn: int, revision: int,
    holder: str = "",
) -> ReadyReplica | None:  # fmt: skip
    """Choose the replica with the fewest open requests of this gateway; equal ones take turns.

    Replicas of ``revision`` come first, until all were tried. ``holder`` has the request's expert in memory. It is
    preferred unless it has over ``MAX_AHEAD`` requests more than the least busy replica.
    """
    left = sorted((each for each in ready if each.id not in tried), key=lambda each: each.id)
    if not left:
        return None
    left = [each for each in left if each.revision == revision] or left
    left = left[turn % len(left) :] + left[: turn % len(left)]
    freest = min(left, key=lambda each: under_way.get(each.id, 0))
    held = next((each for each in left if each.id == holder), freest)
    is_near = under_way.get(held.id, 0) <= under_way.get(freest.id, 0) + MAX_AHEAD
    return held if is_near else freest


def returned_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of an answer for the caller."""
    kind = headers.get("content-type", "")
    is_known = kind.partition(";")[0].strip().lower() in TYPES
    passed = {name: headers[name] for name in RETURNED if name in headers}
    return passed | {
        "content-type": kind if is_known else TYPES[-1],
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
    }


def read_words(said: bytes) -> str:
    """Return a replica's error message, from the error format of any API; otherwise the answer's beginning."""
    error = read_object(said).get("error")
    words = error.get("message") if isinstance(error, dict) else error
    return (words if isinstance(words, str) else said.decode(errors="replace"))[:500]


def is_gone(status: int, headers: Mapping[str, str], said: bytes) -> bool:
    """Return whether an answer means that the replica's node failed, so that another replica must be tried."""
    if status < 400:
        return False
    error = read_object(said).get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return bool(NODE_CODES & {str(code), headers.get(ERROR_HEADER, "")})


def merge_models(own: bytes, others: Sequence[bytes]) -> bytes:
    """Merge the replicas' descriptions of their models, a list or one, into ``own``. A model with a state gets the
    readiest state of all replicas, and ``states`` counts the replicas per state. Unreadable answers are left out.
    """
    answer = read_object(own)
    found = [_states(each) for each in (answer, *map(read_object, others))]
    for entry in _entries(answer):
        states = Counter(each[name] for each in found if (name := str(entry.get("id"))) in each)
        if states:
            entry["state"] = next(each for each in _STATES if states[each])
            entry["states"] = {each: states[each] for each in _STATES if states[each]}
    return orjson.dumps(answer) if answer else own


def _entries(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the models of an answer, which lists several or describes one."""
    listed = answer.get("data", [answer])
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _states(answer: Mapping[str, Any]) -> dict[str, str]:
    return {str(each.get("id")): each["state"] for each in _entries(answer) if each.get("state") in _STATES}
