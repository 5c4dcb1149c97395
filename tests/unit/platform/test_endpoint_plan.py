"""Which replicas start, drain and end; what an endpoint passes on, and what it counts."""

import json
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdukit.errors import InvalidTransition, NotFound
from rdukit_platform.endpoints.plan import (
    Canary,
    EndedReplica,
    EndpointSnapshot,
    EndpointState,
    Replica,
    ReplicaPlan,
    count_canaries,
    is_asleep,
    plan_replicas,
    state_of,
)
from rdukit_platform.endpoints.routing import (
    ReadyReplica,
    body_at_box,
    choose_replica,
    choose_revision,
    is_gone,
    is_inference,
    merge_models,
    path_at_box,
    read_words,
    returned_headers,
)
from rdukit_platform.endpoints.states import ReplicaEvent, ReplicaReason, ReplicaState, next_state
from rdukit_platform.endpoints.usage import Use, read_use
from support import shows

pytestmark = shows("endpoints", "endpoint calls", "endpoint-updates")

S, R, D = ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING
NONE = EndpointSnapshot("e", 1, 1, ())


def replica(name: str, state: ReplicaState = R, revision: int = 1, lease: float | None = 200.0) -> Replica:
    return Replica(name, revision, state, float(len(name)), lease)


def plan(endpoint: EndpointSnapshot, now: float = 100.0, **silent: float) -> ReplicaPlan:
    return plan_replicas([endpoint], now, silent)


def test_what_is_wanted_is_started_and_what_is_there_stays() -> None:
    assert plan(replace(NONE, wanted=3)).starts == (("e", 1),) * 3
    assert not plan(replace(NONE, wanted=2, replicas=(replica("a"), replica("b", S))))


def test_a_silent_replica_is_ended_and_replaced_unless_it_was_beaten_since() -> None:
    late = replace(NONE, replicas=(replica("a", lease=99.0),))
    assert plan(late, a=99.0) == ReplicaPlan(ends=(("a", ReplicaReason.LOST),), starts=(("e", 1),))
    assert not plan(late, a=98.0) and not plan(late)


def test_a_replica_that_no_worker_has_is_not_lost() -> None:
    assert not plan(replace(NONE, replicas=(replica("a", S, lease=None),)), now=1e9)


def test_a_new_revision_is_ready_before_the_old_one_drains() -> None:
    old = replace(NONE, revision=2, replicas=(replica("a"),))
    assert plan(old) == ReplicaPlan(starts=(("e", 2),))
    assert not plan(replace(old, replicas=(replica("a"), replica("bb", S, 2))))
    assert plan(replace(old, replicas=(replica("a"), replica("bb", R, 2)))) == ReplicaPlan(drains=("a",))
    assert not plan(replace(old, replicas=(replica("a", D), replica("bb", R, 2))))


def test_a_replica_whose_node_leaves_drains_when_another_is_ready() -> None:
    leaving = replace(replica("a"), is_leaving=True)
    assert plan(replace(NONE, replicas=(leaving,))) == ReplicaPlan(starts=(("e", 1),))
    assert not plan(replace(NONE, replicas=(leaving, replica("bb", S))))
    assert plan(replace(NONE, replicas=(leaving, replica("bb")))) == ReplicaPlan(drains=("a",))
    assert state_of(replace(NONE, replicas=(leaving, replica("bb")))) is EndpointState.UPDATING


def test_a_canary_whose_node_leaves_drains_when_another_is_ready() -> None:
    leaving = replace(replica("cc", revision=2), is_leaving=True)
    beside = replace(NONE, canary=Canary(2, 1), replicas=(replica("a"), leaving))
    assert plan(beside) == ReplicaPlan(starts=(("e", 2),))
    assert not plan(replace(beside, replicas=(*beside.replicas, replica("dd", S, 2))))
    assert plan(replace(beside, replicas=(*beside.replicas, replica("dd", R, 2)))) == ReplicaPlan(drains=("cc",))


def test_an_old_one_that_is_not_ready_is_not_waited_for() -> None:
    assert plan(replace(NONE, revision=2, replicas=(replica("a", S),))) == ReplicaPlan(
        ends=(("a", ReplicaReason.NOT_WANTED),), starts=(("e", 2),)
    )


def test_of_too_many_those_that_are_not_ready_go_first() -> None:
    three = (replica("a"), replica("bb"), replica("ccc", S))
    assert plan(replace(NONE, wanted=1, replicas=three)) == ReplicaPlan(
        ends=(("ccc", ReplicaReason.NOT_WANTED),), drains=("bb",)
    )
    assert plan(replace(NONE, wanted=0, replicas=three)).drains == ("bb", "a")


def test_after_the_first_failure_at_once_and_after_more_with_longer_pauses() -> None:
    def failed(*ends: float) -> EndpointSnapshot:
        return replace(NONE, ended=tuple(EndedReplica(ReplicaReason.BOX_LOST, at) for at in ends))

    assert plan(failed(100.0)).starts
    assert not plan(failed(99.0, 90.0))
    assert plan(failed(97.0, 90.0)).starts
    assert not plan(failed(97.0, 90.0, 80.0))
    assert not plan(failed(*[50.0 - k for k in range(8)]))
    assert state_of(failed(99.0, 90.0)) is EndpointState.FAILING


def test_who_was_ready_for_long_begins_anew_and_others_ends_do_not_count() -> None:
    long = EndedReplica(ReplicaReason.BOX_LOST, 99.9, ready_at=1.0)
    early = EndedReplica(ReplicaReason.BOX_LOST, 0.5)
    assert plan(replace(NONE, ended=(long, early))).starts
    lost = EndedReplica(ReplicaReason.LOST, 99.9)
    assert plan(replace(NONE, ended=(lost, lost, lost))).starts


STATES = st.sampled_from([S, R, D])
REPLICAS = st.lists(st.tuples(STATES, st.integers(1, 3)), max_size=8)


@given(REPLICAS, st.integers(0, 4), st.integers(1, 3))
def test_updates_never_let_go_of_what_answers_and_never_start_more_than_one_too_many(
    found: list[tuple[ReplicaState, int]], wanted: int, revision: int
) -> None:
    replicas = tuple(Replica(f"r{k}", number, state, float(k), 200.0) for k, (state, number) in enumerate(found))
    said = plan(EndpointSnapshot("e", revision, wanted, replicas))
    ready = [each.id for each in replicas if each.state is R]
    left = [each for each in ready if each not in said.drains]
    assert len(left) >= min(len(ready), wanted)
    ended = {each for each, _ in said.ends}
    there = [each for each in replicas if each.state is not D and each.id not in ended | set(said.drains)]
    assert not said.starts or len(there) + len(said.starts) <= wanted + 1


@given(REPLICAS, st.integers(0, 4), st.integers(1, 3))
def test_steps_lead_to_what_is_wanted(found: list[tuple[ReplicaState, int]], wanted: int, revision: int) -> None:
    replicas = [Replica(f"r{k}", number, state, float(k), 200.0) for k, (state, number) in enumerate(found)]
    for step in range(40):
        endpoint = EndpointSnapshot("e", revision, wanted, tuple(replicas))
        said = plan(endpoint)
        gone = {each for each, _ in said.ends} | set(said.drains)
        replicas = [replace(each, state=R) for each in replicas if each.id not in gone and each.state is not D]
        replicas += [
            Replica(f"s{step}-{k}", number, S, 100.0 + step, 200.0) for k, (_, number) in enumerate(said.starts)
        ]
    assert [each.revision for each in replicas] == [revision] * wanted


def test_the_state_of_an_endpoint_says_what_its_replicas_are() -> None:
    assert state_of(NONE) is EndpointState.STARTING
    assert state_of(replace(NONE, replicas=(replica("a"),))) is EndpointState.READY
    assert state_of(replace(NONE, revision=2, replicas=(replica("a"),))) is EndpointState.UPDATING
    assert state_of(replace(NONE, wanted=0)) is EndpointState.STOPPED


def test_a_canary_has_replicas_of_its_own_beside_those_of_the_wanted_revision() -> None:
    beside = replace(NONE, wanted=2, replicas=(replica("a"), replica("bb")), canary=Canary(2, 1))
    assert plan(beside) == ReplicaPlan(starts=(("e", 2),))
    both = replace(beside, replicas=(*beside.replicas, replica("ccc", R, 2)))
    assert not plan(both)
    assert state_of(both) is EndpointState.READY
    assert state_of(beside) is EndpointState.UPDATING
    # It goes: the others stay as they are.
    assert plan(replace(both, canary=None)) == ReplicaPlan(drains=("ccc",))
    # It is promoted: it counts as one of the wanted, and an old one drains for it.
    promoted = replace(both, canary=None, revision=2)
    assert plan(promoted).drains == ("a",)


def test_a_canary_that_fails_is_tried_after_pauses_and_told_while_the_wanted_revision_goes_on() -> None:
    failed = tuple(EndedReplica(ReplicaReason.NOT_READY, at) for at in (99.0, 90.0))
    beside = replace(NONE, replicas=(replica("a"),), canary=Canary(2, 1, failed))
    assert not plan(beside)
    assert plan(beside, now=102.0).starts == (("e", 2),)
    assert state_of(beside) is EndpointState.FAILING


@pytest.mark.parametrize(
    ("replicas", "percent", "canaries"), [(1, 1, 1), (4, 25, 1), (4, 26, 2), (10, 99, 10), (0, 50, 0)]
)
def test_a_canary_has_its_part_of_the_replicas_and_at_least_one(replicas: int, percent: int, canaries: int) -> None:
    assert count_canaries(replicas, percent) == canaries


def test_an_endpoint_sleeps_once_nobody_has_called_it_for_long_but_not_while_it_starts() -> None:
    ready = (replace(replica("a"), ready_at=50.0),)
    assert is_asleep((), 60.0, called_at=30.0, now=91.0)
    assert not is_asleep((), 60.0, called_at=31.0, now=91.0)
    assert not is_asleep((), None, called_at=0.0, now=1e9)
    assert not is_asleep(ready, 60.0, called_at=0.0, now=110.0)
    assert is_asleep(ready, 60.0, called_at=0.0, now=111.0)
    assert not is_asleep((*ready, replica("bb", S)), 60.0, called_at=0.0, now=1e9)


def test_an_idle_endpoint_is_idle_once_its_replicas_have_ended_and_not_stopped() -> None:
    idle = replace(NONE, wanted=0, is_idle=True)
    assert state_of(idle) is EndpointState.IDLE
    assert state_of(replace(idle, replicas=(replica("a"),))) is EndpointState.UPDATING
    assert plan(replace(idle, replicas=(replica("a"),))).drains == ("a",)


@given(st.integers(1, 99), st.integers(0, 10_000))
def test_of_a_hundred_calls_in_a_row_exactly_the_percent_go_to_the_canary(percent: int, first: int) -> None:
    chosen = [choose_revision(1, 2, percent, turn) for turn in range(first, first + 100)]
    assert chosen.count(2) == percent
    assert choose_revision(1, None, 0, first) == 1


def test_a_call_goes_to_another_revision_where_its_own_has_no_replica() -> None:
    one, two = ReadyReplica("a", 1, "x", None), ReadyReplica("b", 2, "x", None)
    assert choose_replica([one, two], {"b": 5}, (), 0, 2) is two
    assert choose_replica([one], {}, (), 0, 2) is one
    assert choose_replica([one, two], {}, ("b",), 0, 2) is one


def test_a_replica_that_has_ended_has_no_events() -> None:
    with pytest.raises(InvalidTransition):
        next_state("r", ReplicaState.ENDED, ReplicaEvent.READY)
    with pytest.raises(InvalidTransition):
        next_state("r", S, ReplicaEvent.DRAIN)


@pytest.mark.parametrize(
    ("method", "path", "at_box"),
    [
        ("POST", "v2/models/read/infer", "/v2/models/logreg/infer"),
        ("POST", "v2/models/logreg/versions/1/infer", "/v2/models/logreg/versions/1/infer"),
        ("POST", "v2/models/read/rows", "/v2/models/logreg/rows"),
        ("POST", "v2/models/logreg/versions/1/rows", "/v2/models/logreg/versions/1/rows"),
        ("POST", "v2/models/read/images", "/v2/models/logreg/images"),
        ("GET", "v2/models/read", "/v2/models/logreg"),
        ("POST", "v1/chat/completions", "/v1/chat/completions"),
        ("POST", "v1/embeddings", "/v1/embeddings"),
        ("POST", "v1/responses", "/v1/responses"),
        ("POST", "v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("POST", "api/v2/predict/generic/stream/p/read", "/api/v2/predict/generic/stream/p/logreg"),
        ("POST", "api/predict/generic/p/other", "/api/predict/generic/p/other"),
        ("POST", "api/v2/predict/generic/stream/p/hub/one", "/api/v2/predict/generic/stream/p/hub/one"),
        ("GET", "v1/models/hub/one", "/v1/models/hub/one"),
        ("GET", "v2/models/hub/one/versions/1/ready", "/v2/models/hub/one/versions/1/ready"),
        ("GET", "v2/models/read/config", "/v2/models/logreg/config"),
        ("POST", "v2/models/hub/one/infer", "/v2/models/hub/one/infer"),
        ("GET", "v2/health/ready", "/v2/health/ready"),
    ],
)
def test_inference_is_passed_on(method: str, path: str, at_box: str) -> None:
    assert path_at_box(method, path, "read", "logreg") == at_box


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "v2/repository/models/logreg/load"), ("POST", "train"), ("GET", "v2/models/../../operations"),
        ("POST", "v2/models/a?b/infer"), ("POST", "v2//models/a/infer"), ("POST", "v1/operations/x/cancel"),
        ("GET", "metrics"), ("POST", "v2/models/a%2F/infer"), ("GET", "v2/models/a/load"),
        ("POST", "v2/models/a/generate/infer"), ("POST", "v2/models/infer"), ("POST", "api/v2/predict/generic/p"),
        ("POST", "v2/models/rows"), ("POST", "v2/models/a/rows/infer"), ("GET", "v2/models/a/images"),
        ("POST", "v1/messages/batches"), ("GET", "v1/responses/r"),
    ],
)  # fmt: skip
def test_nothing_else_of_a_box_is(method: str, path: str) -> None:
    with pytest.raises(NotFound, match="not forwarded"):
        path_at_box(method, path, "read", "logreg")


def test_an_endpoints_name_stands_for_its_model_in_a_body_and_other_bytes_stay() -> None:
    asked = {"model": "chat", "metadata": {"model": "chat"}, "largest": 2**70}
    body = json.dumps(asked).encode()
    assert json.loads(body_at_box("v1/chat/completions", body, "chat", "qwen3")) == {**asked, "model": "qwen3"}
    versioned = json.loads(body_at_box("v1/messages", b'{"model": "chat:2"}', "chat", "qwen3"))
    assert versioned == {"model": "qwen3:2"}
    for path, endpoint, model, known in (
        ("v1/completions", "other", "qwen3", ()), ("v1/completions", "chat", "chat", ()),
        ("v2/models/chat/infer", "chat", "qwen3", ()), ("v1/messages", "chat", "first", ("first", "chat")),
    ):  # fmt: skip
        assert body_at_box(path, body, endpoint, model, known) is body
    assert body_at_box("v1/completions", b"{damaged", "chat", "qwen3") == b"{damaged"


def test_the_replica_with_the_fewest_requests_is_chosen_and_equal_ones_take_turns() -> None:
    ready = [ReadyReplica(name, 1, "http://x", None) for name in "ab"]
    assert {getattr(choose_replica(ready, {}, (), turn, 1), "id", "") for turn in range(2)} == {"a", "b"}
    assert choose_replica(ready, {"a": 1}, (), 0, 1) == ready[1]
    assert choose_replica(ready, {"a": 1}, ("b",), 0, 1) == ready[0]
    assert choose_replica(ready, {}, ("a", "b"), 0, 1) is None


@pytest.mark.parametrize(
    ("under_way", "tried", "chosen"), [(4, (), "b"), (5, (), "a"), (0, ("b",), "a")],
    ids=["as-busy-as-it-may-be", "too-busy", "failed"],
)  # fmt: skip
def test_a_request_goes_where_its_expert_is_unless_that_is_much_busier(
    under_way: int, tried: tuple[str, ...], chosen: str
) -> None:
    ready = [ReadyReplica(name, 1, "http://x", None) for name in "ab"]
    assert {
        getattr(choose_replica(ready, {"b": under_way}, tried, turn, 1, "b"), "id", "") for turn in range(4)
    } == {chosen}  # fmt: skip
    assert getattr(choose_replica(ready, {"b": 1}, (), 0, 1, "gone"), "id", "") == "a"


def test_models_have_the_readiest_state_of_all_replicas_and_how_many_have_which() -> None:
    def told(**states: str) -> bytes:
        return orjson.dumps(
            {"object": "list", "data": [{"id": n, "state": s} for n, s in states.items()] + [{"id": "r"}]}
        )

    own, others = told(a="Offline", b="Live", c="Offline"), [told(a="Live", b="Starting", c="Offline"), b"no", b"[]"]
    assert orjson.loads(merge_models(own, others))["data"] == [
        {"id": "a", "state": "Live", "states": {"Live": 1, "Offline": 1}},
        {"id": "b", "state": "Live", "states": {"Live": 1, "Starting": 1}},
        {"id": "c", "state": "Offline", "states": {"Offline": 2}}, {"id": "r"},
    ]  # fmt: skip
    one = b'{"id":"a","state":"Queued"}'
    assert orjson.loads(merge_models(one, [b'{"id":"a","state":"Starting"}']))["state"] == "Starting"
    strange = (b"", b"[]", b'{"data":3}', b'{"data":[3,{"id":"a"},{"id":[],"state":"Wild"},{"state":["Live"]}]}')
    for own in strange:
        assert merge_models(own, strange) == own


def test_no_page_and_no_cookie_of_a_box_reaches_a_browser() -> None:
    headers = returned_headers({"content-type": "text/html", "set-cookie": "a=b", "server-timing": "q;dur=1"})
    assert headers["content-type"] == "application/octet-stream"
    assert "set-cookie" not in headers
    assert headers["server-timing"] == "q;dur=1"


def test_rows_and_tokens_are_those_that_the_answer_tells() -> None:
    assert read_use(200, b'{"outputs": [{"name": "y", "shape": [3, 10]}]}', b"") == Use(1, rows=3)
    binary = b'{"outputs":[{"shape":[2]}]}'
    assert read_use(200, binary + b"\0\1", b"", header_bytes=len(binary)) == Use(1, rows=2)
    usage = b'"usage":{"prompt_tokens":4,"completion_tokens":6,"total_tokens":10}'
    assert read_use(200, b"{" + usage + b"}", b"") == Use(1, prompt_tokens=4, completion_tokens=6)
    assert read_use(200, b"", b"data: {" + usage + b"}\n\ndata: [DONE]\n\n") == Use(
        1, prompt_tokens=4, completion_tokens=6
    )
    tokens = Use(1, prompt_tokens=4, completion_tokens=6)
    response = b'"usage":{"input_tokens":4,"input_tokens_details":{"cached_tokens":1},"output_tokens":6}'
    message = (
        b'"usage":{"input_tokens":1,"output_tokens":6,"cache_read_input_tokens":3,"cache_creation_input_tokens":0}'
    )
    for each in (response, message):
        assert read_use(200, b"{" + each + b"}", b"") == read_use(200, b"", b"data: {" + each + b"}\n\n") == tokens
    item = b'{"completion":"\\"prompt_tokens_count\\":9","prompt_tokens_count":2,"completion_tokens_count":3}'
    assert read_use(200, b'{"items":[' + item + b"," + item + b"]}", b"") == tokens
    assert read_use(200, b'{"stream_token":"a"}\n' + item + b"\n" + item, b"") == tokens
    assert read_use(200, b'{"predictions": [{"label": "a"}, {"label": "b"}]}', b"") == Use(1, rows=2)
    assert read_use(400, b'{"error": "no"}', b"") == Use(1)
    assert read_use(500, b'{"error": "no"}', b"") == Use(1, 1)
    for strange in (b"", b"[]", b'{"outputs": [7]}', b'{"usage": 3}', b'{"usage": {"prompt_tokens": -1}}'):
        assert read_use(200, strange, b"") == Use(1)


def test_why_a_replica_refuses_is_read_of_the_forms_of_all_apis() -> None:
    assert read_words(b'{"error": "not yet"}') == "not yet"
    assert read_words(b'{"type": "error", "error": {"type": "x", "message": "stops"}}') == "stops"
    assert read_words(b"<html>") == "<html>"


@pytest.mark.parametrize(
    ("method", "path", "counts"),
    [
        ("POST", "v2/models/read/infer", True),
        ("POST", "v1/chat/completions", True),
        ("POST", "api/v2/predict/generic/stream/p/read", True),
        ("POST", "v1/messages", True),
        ("POST", "v1/messages/count_tokens", False),
        ("GET", "v2/models/read", False),
        ("GET", "v2/health/ready", False),
        ("GET", "v1/models", False),
    ],
)
def test_only_inference_is_use(method: str, path: str, counts: bool) -> None:
    assert is_inference(method, path) is counts


@pytest.mark.parametrize(
    ("status", "code", "said", "is_so"),
    [
        (409, "", {"error": {"code": "lease-withdrawn", "message": "m"}}, True),
        (409, "", {"error": {"code": "tile-fault", "message": "m"}}, True),
        (409, "", {"error": {"code": "conflict", "message": "m"}}, False),
        (409, "lease-withdrawn", {"error": "its tiles were drained"}, True),
        (409, "numerical-trap", {"error": "lease-lost"}, False),
        (200, "lease-lost", {"error": {"code": "lease-lost"}}, False),
        (409, "", [], False),
    ],
)
def test_a_replica_whose_node_failed_is_told_from_other_refusals(
    status: int, code: str, said: object, is_so: bool
) -> None:
    assert is_gone(status, {"x-rdukit-error": code}, orjson.dumps(said)) is is_so
