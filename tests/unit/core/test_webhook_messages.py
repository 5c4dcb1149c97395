"""What webhooks are told, how it is signed, and when it is tried again."""

import base64
import hashlib
import hmac

import pytest

from rdukit.errors import InvalidArgument
from rdukit.http.addresses import is_public
from rdukit.http.webhooks import check_url, headers_of, is_transient
from support import shows

pytestmark = shows("webhooks")


@pytest.mark.parametrize(
    "url",
    ["", "ftp://example.com", "http://", "https:///x", "http://a b", "http://[::1", "http://x:99999", "http://x:0", "file:///etc/passwd",
     "http://x\n", "gopher://x", "http://" + "x" * 3000],
)  # fmt: skip
def test_a_url_that_is_none_is_refused_by_its_field(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_url(url, "url")
    assert caught.value.detail["field"] == "url"


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True), ("127.0.0.1", False), ("10.1.2.3", False), ("169.254.169.254", False),
        ("192.168.0.1", False), ("0.0.0.0", False), ("224.0.0.1", False), ("100.64.0.1", False), ("::1", False),
        ("::ffff:127.0.0.1", False), ("64:ff9b::7f00:1", False), ("2002:7f00:1::", False), ("fe80::1%eth0", False),
        ("fec0::1", False), ("::127.0.0.1", False), ("64:ff9b:1::7f00:1", False),
        ("198.18.0.1", False), ("ff0e::1", False), ("240.0.0.1", False), ("::ffff:10.0.0.1", False),
        ("fd00::1", False), ("2606:2800:220:1:248:1893:25c8:1946", True), ("::ffff:93.184.216.34", True),
    ],
)  # fmt: skip
def test_only_public_addresses_are_reached(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_the_signature_is_that_of_the_standard() -> None:
    secret = "whsec_" + base64.b64encode(b"key of the receiver").decode()
    headers = headers_of("op-1.2", 1614265330, b'{"test": 2432232314}', [secret])
    signed = b'op-1.2.1614265330.{"test": 2432232314}'
    expected = base64.b64encode(hmac.new(b"key of the receiver", signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("op-1.2", "1614265330")
    assert "webhook-signature" not in headers_of("a", 1, b"", [])


def test_a_secret_that_is_not_base64_is_named() -> None:
    with pytest.raises(InvalidArgument, match="not base64"):
        headers_of("a", 1, b"", ["whsec_***"])


def test_a_post_is_repeated_where_that_may_help() -> None:
    assert [s for s in (0, 200, 301, 400, 404, 408, 410, 429, 500, 503) if is_transient(s)] == [0, 408, 429, 500, 503]
