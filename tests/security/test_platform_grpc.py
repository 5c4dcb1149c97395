"""gRPC of the gateway: jobs as REST has them, by the same permissions, and hostile callers.

Each method with each role, for its own tenant and another; ``GRPC_PERMISSIONS`` is the table.
"""

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import grpc
import pytest
from google.protobuf.struct_pb2 import Struct
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from rdukit.proto import jobs_pb2 as pb
from rdukit.proto import jobs_pb2_grpc
from rdukit_platform.gateway.permissions import GRPC_PERMISSIONS
from rdukit_platform.gateway.routes import PERMISSIONS
from rdukit_platform.gateway.rpc import SERVICE
from rdukit_platform.tenants.roles import ROLES
from support import shows, wait_until
from support.platform.gateway import Example, GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder

pytestmark = shows("jobs", "permissions", "audit", "wire")

OTHERS: Final = {"application": ["endpoints:call"], "metrics": ["metrics"], "admin": ["admin"], "nobody": None}
CALLERS: Final = [*ROLES, *OTHERS]
METHODS: Final = [name.rpartition("/")[2] for name in GRPC_PERMISSIONS]


@dataclass(frozen=True)
class Callers:
    """A gateway with gRPC, two tenants with jobs, and callers of the first."""

    gateway: GatewayUnderTest
    stub: Any
    channel: Any
    tokens: dict[str, str | None]
    own: dict[str, str]
    other: dict[str, str]

    def call(self, method: str, caller: str, request: Any) -> Any:
        """Return the answer, of a stream the first one; raises grpc.RpcError."""
        token = self.tokens[caller]
        answer = getattr(self.stub, method)(request, metadata=metadata(token), timeout=30)
        if not hasattr(answer, "cancel"):
            return answer
        try:
            return next(answer, None)
        finally:
            answer.cancel()


def metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    return () if token is None else (("authorization", f"Bearer {token}"),)


def request_of(method: str, job_id: str) -> Any:
    """Return a message for a method; what submits names no box that there is."""
    if method == "Submit":
        return pb.SubmitRequest(box="none", verb="train")
    kind = SERVICE.methods_by_name[method].input_type.name
    return pb.ListRequest() if kind == "ListRequest" else getattr(pb, kind)(id=job_id)


@pytest.fixture(scope="module")
def callers() -> Iterator[Callers]:
    with pytest.MonkeyPatch.context() as patch, short_folder() as folder:
        patch.setenv("RDUKIT_HOME", str(folder))
        with socket.create_server(("127.0.0.1", 0)) as free:
            target = f"127.0.0.1:{free.getsockname()[1]}"
        patch.setenv("RDUKIT_GATEWAY_GRPC_ADDRESS", target)
        patch.setenv("RDUKIT_GATEWAY_MAX_BODY_BYTES", str(1 << 20))
        with gateway_under_test() as gateway:
            tokens = {
                caller: None if scopes is None else gateway.token("lab", *scopes)
                for caller, scopes in {**{name: list(role.scopes) for name, role in ROLES.items()}, **OTHERS}.items()
            }
            filled = []
            for tenant in ("lab", "victim"):
                me = gateway.ask("GET", "/v1/me", gateway.token(tenant, "read")).json()["tenant"]["id"]
                filled.append(
                    Example(gateway.platform.database, gateway.platform.store, me, gateway.platform.clock.now()).fill()
                )
            with grpc.insecure_channel(target) as channel:
                grpc.channel_ready_future(channel).result(60)
                yield Callers(gateway, jobs_pb2_grpc.JobsStub(channel), channel, tokens, filled[0], filled[1])


def is_let_in(method: str, caller: str) -> bool:
    scopes = OTHERS[caller] if caller in OTHERS else ROLES[caller].scopes
    return scopes is not None and GRPC_PERMISSIONS[f"{SERVICE.full_name}/{method}"].lets_in(scopes)


def test_every_method_has_the_permission_that_its_route_has() -> None:
    assert sorted(METHODS) == sorted(method.name for method in SERVICE.methods)
    routes = {
        "Submit": "POST /v1/jobs", "Get": "GET /v1/jobs/{job_id}", "List": "GET /v1/jobs",
        "Watch": "GET /v1/jobs/{job_id}/events", "Logs": "GET /v1/jobs/{job_id}/logs",
        **{act: f"POST /v1/jobs/{{job_id}}/{act.lower()}" for act in ("Cancel", "Pause", "Resume")},
    }  # fmt: skip
    assert {m: GRPC_PERMISSIONS[f"{SERVICE.full_name}/{m}"] for m in METHODS} == {
        method: PERMISSIONS[route] for method, route in routes.items()
    }


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("method", METHODS)
def test_a_role_calls_what_it_may_and_nothing_of_another_tenant(callers: Callers, method: str, caller: str) -> None:
    reads = method in {"Get", "Watch", "Logs", "List"}
    own = callers.own["succeeded"] if reads else "job-none"
    if is_let_in(method, caller):
        if reads:
            callers.call(method, caller, request_of(method, own))
        for job_id in (callers.other["running"], "job-none"):
            if method == "List":
                listed = callers.call(method, caller, pb.ListRequest(page_size=200))
                assert {job.id for job in listed.jobs}.isdisjoint(callers.other.values())
                continue
            with pytest.raises(grpc.RpcError) as caught:
                callers.call(method, caller, request_of(method, job_id))
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    else:
        with pytest.raises(grpc.RpcError) as caught:
            callers.call(method, caller, request_of(method, own))
        wanted = grpc.StatusCode.UNAUTHENTICATED if caller == "nobody" else grpc.StatusCode.PERMISSION_DENIED
        assert caught.value.code() is wanted


def test_a_job_is_submitted_found_and_cancelled(callers: Callers) -> None:
    parameters = Struct()
    parameters.update({"batch_size": 32, "mode": "o0"})
    request = pb.SubmitRequest(
        box="logreg", verb="compile", parameters=parameters, labels={"wire": "grpc"}, tiles=0, run_limit_s=60,
        retry=pb.RetryPolicy(on=["box-lost"], backoff_s=2), idempotency_key="once",
    )  # fmt: skip
    job = callers.call("Submit", "data-scientist", request)
    assert callers.call("Submit", "data-scientist", request).id == job.id
    rest = callers.gateway.ask("GET", f"/v1/jobs/{job.id}", callers.tokens["data-scientist"]).json()
    assert rest["parameters"] == {"batch_size": 32, "mode": "o0"} and rest["retry"] == {
        "on": ["box-lost"],
        "backoff_s": 2,
    }
    assert (job.state, dict(job.labels), job.run_limit_s) == ("queued", {"wire": "grpc"}, 60)
    assert not job.HasField("started_at") and job.created_at == rest["created_at"]
    page = callers.call("List", "viewer", pb.ListRequest(labels={"wire": "grpc"}))
    assert [each.id for each in page.jobs] == [job.id] and page.next_page_token == ""
    searched = pb.ListRequest(search=f"wire=grpc {job.name}")
    assert [each.id for each in callers.call("List", "viewer", searched).jobs] == [job.id]
    assert job.id in [found.id for found in callers.call("List", "viewer", pb.ListRequest(box=job.box)).jobs]
    assert not callers.call("List", "viewer", pb.ListRequest(box=f"{job.box}s")).jobs
    none = callers.call("List", "viewer", pb.ListRequest(search="no-such-word"))
    assert not none.jobs and not none.HasField("searched_to")
    first = callers.call("List", "viewer", pb.ListRequest(page_size=1))
    second = callers.call("List", "viewer", pb.ListRequest(page_size=1, page_token=first.next_page_token))
    assert first.jobs[0].id != second.jobs[0].id
    with pytest.raises(grpc.RpcError) as refused:
        callers.call("List", "viewer", pb.ListRequest(page_size=201))
    assert refused.value.details() == "page_size is 201; expected 1 to 200"

    told: list[str] = []
    stream = callers.stub.Watch(pb.WatchRequest(id=job.id), metadata=metadata(callers.tokens["viewer"]), timeout=60)
    follower = threading.Thread(target=lambda: told.extend(event.data["to"] for event in stream))
    follower.start()
    wait_until(lambda: "queued" in told)
    assert callers.call("Cancel", "data-scientist", pb.JobRequest(id=job.id)).state == "cancelled"
    follower.join(60)
    assert told == ["submitted", "queued", "cancelled"]


def test_logs_are_those_of_rest(callers: Callers) -> None:
    token, job_id = callers.tokens["viewer"], callers.own["succeeded"]
    rest = callers.gateway.ask("GET", f"/v1/jobs/{job_id}/logs", token).text.splitlines()
    for follow in (False, True):
        lines = callers.stub.Logs(pb.LogsRequest(id=job_id, follow=follow), metadata=metadata(token), timeout=30)
        assert [line.line for line in lines] == rest


def test_a_refusal_has_the_details_that_the_other_wires_give(callers: Callers) -> None:
    request = pb.SubmitRequest(box="logreg", verb="compile", priority=1000, retry=pb.RetryPolicy(on=["weather"]))
    with pytest.raises(grpc.RpcError) as caught:
        callers.call("Submit", "data-scientist", request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    trailing = dict(caught.value.trailing_metadata())
    status = status_pb2.Status.FromString(trailing["grpc-status-details-bin"])
    bad = error_details_pb2.BadRequest()
    assert any(detail.Unpack(bad) for detail in status.details)
    assert {violation.field for violation in bad.field_violations} == {"priority", "retry.on"}
    assert json.loads(trailing["rdukit-error-bin"])["error"]["code"] == "invalid-argument"


def test_refusals_are_in_the_audit_log(callers: Callers) -> None:
    with pytest.raises(grpc.RpcError):
        callers.call("Cancel", "viewer", pb.JobRequest(id=callers.own["running"]))
    admin = callers.gateway.admin
    target = f"{SERVICE.full_name}/Cancel"
    wait_until(lambda: any(entry["target"] == target for entry in callers.gateway.entries(admin, "?action=request")))
    entry = next(e for e in callers.gateway.entries(admin, "?action=request") if e["target"] == target)
    assert entry["address"] == "127.0.0.1" and entry["reason"] in {"permission-denied", "unauthenticated"}


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\xff\xff\xff", "INVALID_ARGUMENT"),
        (b"\x0a\x02\xff\xfe", "INVALID_ARGUMENT"),
        (b"x" * (2 << 20), "RESOURCE_EXHAUSTED"),
        (pb.WatchRequest(id="job-none", after=-1).SerializeToString(), "INVALID_ARGUMENT"),
        (pb.WatchRequest(id="\x00").SerializeToString(), "NOT_FOUND INVALID_ARGUMENT"),
        (b"", "NOT_FOUND"),
    ],
)
def test_what_cannot_be_read_is_the_callers_fault(callers: Callers, data: bytes, status: str) -> None:
    send = callers.channel.unary_stream(f"/{SERVICE.full_name}/Watch")
    with pytest.raises(grpc.RpcError) as caught:
        list(send(data, metadata=metadata(callers.tokens["viewer"]), timeout=30))
    assert caught.value.code().name in status.split()


def test_a_call_without_a_message_or_of_one_who_reads_nothing_ends(
    callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_GATEWAY_SILENCE_S", "0.5")
    release = threading.Event()

    def silence() -> Iterator[bytes]:
        release.wait(60)
        yield from ()

    send = callers.channel.stream_unary(f"/{SERVICE.full_name}/Get")
    try:
        with pytest.raises(grpc.RpcError) as caught:
            send(silence(), metadata=metadata(callers.tokens["viewer"]), timeout=30)
        assert (
            caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED and "gateway.silence_s" in caught.value.details()
        )
    finally:
        release.set()


def test_a_tenant_follows_no_more_streams_than_it_may(callers: Callers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_GATEWAY_MAX_STREAMS", "1")
    token, request = callers.tokens["viewer"], pb.WatchRequest(id=callers.own["running"])
    first = callers.stub.Watch(request, metadata=metadata(token), timeout=60)
    next(first)
    with pytest.raises(grpc.RpcError) as caught:
        next(callers.stub.Watch(request, metadata=metadata(token), timeout=30))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "gateway.max_streams" in caught.value.details()
    first.cancel()
    followers = callers.gateway.platform.followers
    wait_until(lambda: not followers._streams)


def test_health_and_reflection_answer_anybody(callers: Callers) -> None:
    health = health_pb2_grpc.HealthStub(callers.channel)
    for name in ("", SERVICE.full_name):
        answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=30)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert SERVICE.full_name in ProtoReflectionDescriptorDatabase(callers.channel).get_services()
