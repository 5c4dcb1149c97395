"""Webhooks of a gateway's tenants, delivered to real receivers and verified by the standard's own library."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from rdukit_platform.tenants.service import find_tenant
from rdukit_platform.webhooks.dispatcher import WebhookSender
from rdukit_platform.webhooks.service import create_webhook
from support import shows, wait_until
from support.pages import code_blocks, read_page
from support.platform.gateway import GatewayUnderTest, gateway_under_test

pytestmark = shows("webhooks", "audit")


class Receiver:
    """Takes messages; answers with ``status``, or with nothing until it is released."""

    def __init__(self) -> None:
        self.messages: list[tuple[dict[str, str], bytes]] = []
        self.status, self.location = 204, ""
        self.released = threading.Event()
        self.released.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.messages.append(({k.lower(): v for k, v in self.headers.items()}, body))
                receiver.released.wait(60)
                self.send_response(receiver.status)
                if receiver.location:
                    self.send_header("location", receiver.location)
                self.end_headers()

            def log_message(self, *words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.url = f"http://localhost:{self._server.server_port}/hooks?team=a"

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with closing(Receiver()) as found:
        yield found


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayUnderTest]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("RDUKIT_WEBHOOK_ALLOWED_NETWORKS", "127.0.0.0/8 ::1/128")
        with (
            gateway_under_test() as gateway,
            closing(WebhookSender(gateway.platform.database, gateway.platform.clock)) as sender,
        ):
            sender.start()
            yield gateway


def add(gateway: GatewayUnderTest, token: str, url: str) -> dict[str, Any]:
    answer = gateway.ask("POST", "/v1/webhooks", token, json={"url": url})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def deliveries(gateway: GatewayUnderTest, token: str, hook: str, state: str = "") -> list[dict[str, Any]]:
    query = f"?state={state}" if state else ""
    found: list[dict[str, Any]] = gateway.ask("GET", f"/v1/webhooks/{hook}/deliveries{query}", token).json()[
        "deliveries"
    ]
    return found


def send_test(gateway: GatewayUnderTest, token: str, hook: str) -> dict[str, Any]:
    """Return a test message after its first try."""
    sent = gateway.ask("POST", f"/v1/webhooks/{hook}/test", token).json()
    path = f"/v1/webhooks/{hook}/deliveries/{sent['id']}"
    wait_until(lambda: gateway.ask("GET", path, token).json()["attempts"] > 0)
    found: dict[str, Any] = gateway.ask("GET", path, token).json()
    return found


def test_a_message_verifies_with_the_secret_and_with_the_one_before(
    gateway: GatewayUnderTest, receiver: Receiver
) -> None:
    token = gateway.token("signed", "read", "write")
    made = add(gateway, token, receiver.url)
    rotated = gateway.ask("POST", f"/v1/webhooks/{made['id']}/rotate", token, json={"grace_s": 600}).json()
    assert rotated["secret"] != made["secret"]
    sent = send_test(gateway, token, made["id"])
    assert (sent["state"], sent["status"], sent["error"]) == ("delivered", 204, None)
    headers, body = receiver.messages[0]
    for secret in (made["secret"], rotated["secret"]):
        assert Webhook(secret).verify(body, headers)["type"] == "webhook.test"
    with pytest.raises(WebhookVerificationError):
        Webhook(rotated["secret"]).verify(body + b" ", headers)
    assert headers["webhook-id"] == sent["id"] and headers["host"].startswith("localhost:")


def test_secrets_are_shown_once_and_are_nowhere_else(
    gateway: GatewayUnderTest, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    token = gateway.token("hidden", "read", "write")
    made = add(gateway, token, receiver.url)
    send_test(gateway, token, made["id"])
    said = [
        gateway.ask("GET", path, token).text
        for path in ("/v1/webhooks", f"/v1/webhooks/{made['id']}", f"/v1/webhooks/{made['id']}/deliveries", "/v1/audit")
    ]
    assert "webhook.create" in said[3]
    assert made["secret"] not in "".join([*said, caplog.text]) and "whsec_" not in "".join([*said, caplog.text])


def test_no_redirect_is_followed_and_what_failed_can_be_sent_again(
    gateway: GatewayUnderTest, receiver: Receiver
) -> None:
    token = gateway.token("moved", "read", "write")
    hook = add(gateway, token, receiver.url)["id"]
    receiver.status, receiver.location = 302, receiver.url
    sent = send_test(gateway, token, hook)
    assert (sent["state"], sent["status"]) == ("pending", 302) and "a redirect" in sent["error"]
    assert len(receiver.messages) == 1
    receiver.status = 200
    gateway.ask("POST", f"/v1/webhooks/{hook}/deliveries/{sent['id']}/redeliver", token)
    wait_until(lambda: len(deliveries(gateway, token, hook, "delivered")) == 1)
    assert {headers["webhook-id"] for headers, _ in receiver.messages} == {sent["id"]}


@pytest.mark.long
def test_a_slow_receiver_of_one_tenant_delays_no_other(gateway: GatewayUnderTest, receiver: Receiver) -> None:
    slow, quick = gateway.token("slow", "read", "write"), gateway.token("quick", "read", "write")
    receiver.released.clear()
    hook = add(gateway, slow, receiver.url)["id"]
    for _ in range(50):
        gateway.ask("POST", f"/v1/webhooks/{hook}/test", slow)
    wait_until(lambda: len(receiver.messages) == 4)
    with closing(Receiver()) as other:
        sent = send_test(gateway, quick, add(gateway, quick, other.url)["id"])
        assert sent["state"] == "delivered" and len(receiver.messages) == 4
    receiver.released.set()
    wait_until(lambda: len(deliveries(gateway, slow, hook, "delivered")) == 50)


def test_failures_disable_a_webhook_and_whoever_mends_its_receiver_enables_it(
    gateway: GatewayUnderTest, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_WEBHOOK_MAX_FAILURES", "2")
    monkeypatch.setenv("RDUKIT_WEBHOOK_FAILING_HOURS", "0")
    token = gateway.token("broken", "read", "write")
    hook = add(gateway, token, receiver.url)["id"]
    receiver.status = 500
    send_test(gateway, token, hook)
    send_test(gateway, token, hook)
    found = gateway.ask("GET", f"/v1/webhooks/{hook}", token).json()
    assert found["disabled_at"] and "the receiver answered 500" in found["disabled_reason"]
    status, said = gateway.refused("POST", f"/v1/webhooks/{hook}/test", token)
    assert status == 409 and f"rdukit webhook enable {hook}" in said
    receiver.status = 204
    assert gateway.ask("POST", f"/v1/webhooks/{hook}/enable", token).json()["disabled_at"] is None
    assert send_test(gateway, token, hook)["state"] == "delivered"
    status, said = gateway.refused("POST", f"/v1/webhooks/{hook}/disable", token, json={"reason": "two\nlines"})
    assert status == 400 and "reason" in said
    disabled = gateway.ask("POST", f"/v1/webhooks/{hook}/disable", token, json={"reason": "it moves"}).json()
    assert disabled["disabled_reason"] == "it moves"


def test_a_receiver_that_does_not_answer_in_time_is_tried_again(
    gateway: GatewayUnderTest, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_WEBHOOK_TIMEOUT_S", "0.3")
    token = gateway.token("late", "read", "write")
    receiver.released.clear()
    sent = send_test(gateway, token, add(gateway, token, receiver.url)["id"])
    assert (sent["state"], sent["error"]) == ("pending", "no answer within 0.3 s")


@pytest.mark.parametrize("host", ["169.254.169.254", "10.0.0.1", "[fd00::1]", "0x0a000001"])
def test_an_address_that_is_not_public_is_refused_at_once_and_not_reached_later(
    gateway: GatewayUnderTest, host: str
) -> None:
    token = gateway.token("prober", "read", "write")
    url = f"http://{host}/latest"
    status, said = gateway.refused("POST", "/v1/webhooks", token, json={"url": url})
    assert (status, "not at a public address" in said, "webhook.allowed_networks" in said) == (400, True, True)
    platform = gateway.platform
    with platform.database.write() as session:  # as one whose name led elsewhere when it was added
        tenant = find_tenant(session, "prober")
        assert tenant is not None
        hook = create_webhook(session, tenant.id, url, [], platform.clock.now()).id
    sent = send_test(gateway, token, hook)
    assert (sent["state"], sent["status"]) == ("pending", 0) and "not at a public address" in sent["error"]


def test_another_tenant_and_one_who_only_reads_change_nothing(gateway: GatewayUnderTest, receiver: Receiver) -> None:
    token, reader = gateway.token("owner", "read", "write"), gateway.token("owner", "read")
    blind, stranger = gateway.token("owner", "jobs:write"), gateway.token("stranger", "read", "write")
    hook = add(gateway, token, receiver.url)["id"]
    for path in (f"/v1/webhooks/{hook}/{act}" for act in ("test", "rotate", "disable", "enable")):
        assert gateway.refused("POST", path, reader)[0] == gateway.refused("POST", path, blind)[0] == 403
        assert gateway.refused("POST", path, stranger)[0] == 404
    assert gateway.refused("DELETE", f"/v1/webhooks/{hook}", stranger)[0] == 404
    assert gateway.ask("GET", "/v1/webhooks", stranger).json()["webhooks"] == []
    assert gateway.ask("DELETE", f"/v1/webhooks/{hook}", token).status_code == 200
    assert gateway.ask("GET", "/v1/webhooks", token).json()["webhooks"] == []


def test_the_page_verifies_as_it_says(gateway: GatewayUnderTest, receiver: Receiver) -> None:
    program = code_blocks(read_page("webhooks.md"))[0]
    token = gateway.token("reader-of-the-page", "read", "write")
    made = add(gateway, token, receiver.url)
    send_test(gateway, token, made["id"])
    headers, body = receiver.messages[0]
    names: dict[str, Any] = {}
    exec(compile(program, "docs/webhooks.md", "exec"), names)
    assert names["is_genuine"](made["secret"], headers, body)
    assert not names["is_genuine"](made["secret"], headers, body.replace(b"test", b"Test"))
    assert not names["is_genuine"](made["secret"], {**headers, "webhook-timestamp": "1"}, body)
    assert json.loads(body)["type"] == "webhook.test"
