"""Choices of a call (pure): what of a box its endpoint passes on, what of an answer, and which replica takes it."""

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

#: Headers of a request that a replica gets: no token, no cookie, no address of the caller.
PASSED: Final = ("content-type", "accept", "inference-header-content-length", "x-request-id")
#: Headers of an answer that the caller gets: none that means anything for the gateway's own pages.
RETURNED: Final = ("inference-header-content-length", "server-timing", "retry-after", "x-rdukit-expert")
#: States of an expert, the one first that an endpoint tells if any of its replicas has it.
_STATES: Final = ("Live", "Starting", "Queued", "Offline")
#: Types of an answer that are passed on as they are; others would be bytes. No page runs from here.
TYPES: Final = ("application/json", "text/event-stream", "application/octet-stream")
#: A replica that has a request's expert in memory may have so many more requests under way than the freest.
MAX_AHEAD: Final = 4
_TEXT: Final = (
    "chat/completions", "completions", "embeddings", "responses", "messages", "messages/count_tokens",
)  # fmt: skip
#: SambaStudio's, behind ``api``; of its paths the last part is the model, whose name may have a ``/``.
_GENERIC: Final = re.compile("(?P<route>(?:v2/)?predict/generic(?:/stream)?/[^/]+)/(?P<model>.+)")
#: Of the Open Inference Protocol, behind ``v2/models``: what is read of a model, and what computes.
_READ: Final = re.compile(r"(?P<model>.+?)(?P<rest>(?:/versions/[^/]+)?(?:/(?:config|ready|stats))?)")
_INFER: Final = re.compile(r"(?P<model>.+?)(?P<rest>(?:/versions/[^/]+)?/infer)")
#: No parts of a model's name behind its first ``/``: they are, or could become, what a server does with a model.
_NO_NAMES: Final = frozenset(("config", "ready", "stats", "infer", "load", "unload", "versions", "trace", "generate"))
_LEGAL: Final = (
    "legal: v2/models/MODEL[/versions/V]/infer, v2/models/MODEL[/config|/ready|/stats], v2, v2/health/ready, "
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

    Only inference is passed on: whoever calls an endpoint does not load models or start jobs in its box.

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
    raise NotFound(f"{method} {path[:120]!r} is not passed on to an endpoint; {_LEGAL}")


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
    """Return whether a request below an endpoint asks for an answer of the model, not for what there is to know of it.

    Args:
        path: as of ``path_at_box``, one that is passed on.
    """
    return method == "POST" and not path.endswith("/count_tokens")


def choose_revision(wanted: int, canary: int | None, percent: int, turn: int) -> int:
    """Choose the revision for a call: of 100 calls one after the other, exactly ``percent`` go to the canary."""
    # 61 has no divisor in common with 100: the turns are spread, and each of the 100 places comes once.
    return canary if canary is not None and turn * 61 % 100 < percent else wanted


def choose_replica(
    ready: Iterable[ReadyReplica], under_way: Mapping[str, int], tried: Collection[str], turn: int, revision: int,
    holder: str = "",
) -> ReadyReplica | None:  # fmt: skip
    """Choose the one with the fewest requests of this gateway under way; of several alike, they take turns.

    It is of the revision, unless that has none left that was not tried. ``holder`` is the replica that has the
    request's expert in memory: it comes first unless it has over ``MAX_AHEAD`` requests more than the freest.
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
    """Return why a replica refuses a request, of an error in the form of any API, or how it begins."""
    error = read_object(said).get("error")
    words = error.get("message") if isinstance(error, dict) else error
    return (words if isinstance(words, str) else said.decode(errors="replace"))[:500]


def is_gone(status: int, headers: Mapping[str, str], said: bytes) -> bool:
    """Return whether an answer says that its replica's node failed under it, so that another one is to be asked."""
    if status < 400:
        return False
    error = read_object(said).get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return bool(NODE_CODES & {str(code), headers.get(ERROR_HEADER, "")})


def merge_models(own: bytes, others: Sequence[bytes]) -> bytes:
    """Merge what replicas say of their models, a list or one, into one answer: ``own``, in which each model that has a
    state has the readiest one of all, and ``states``, how many replicas have which. What cannot be read is left out.
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
    """Return the models of an answer, which is a list of them or one."""
    listed = answer.get("data", [answer])
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _states(answer: Mapping[str, Any]) -> dict[str, str]:
    return {str(each.get("id")): each["state"] for each in _entries(answer) if each.get("state") in _STATES}
