"""What callers write for artifacts, and where boxes never connect to."""

import ipaddress

import pytest

from rdukit.errors import InvalidArgument
from rdukit.http.addresses import find_refusal, parse_networks
from rdukit_modelbox.artifacts.reference import is_remote, parse_output, parse_reference, text_of
from rdukit_modelbox.artifacts.settings import REFUSED_NETWORKS
from support import shows

pytestmark = shows("modelbox", "security", "settings")

DIGEST = "ab" * 32


@pytest.mark.parametrize(
    ("text", "host", "path", "name"),
    [
        ("s3://models/mlp/mlp.pef", "models", "mlp/mlp.pef", "mlp.pef"),
        ("s3://models/data/", "models", "data/", "data"),
        ("s3://models/a%20b/c.csv", "models", "a b/c.csv", "c.csv"),
        ("https://example.com/x/data.tar.gz?sig=1%2F2", "example.com", "/x/data.tar.gz?sig=1%2F2", "data.tar.gz"),
        ("http://example.com:8080", "example.com:8080", "/", "artifact"),
        ("http://[2001:db8::1]:80/.hidden", "[2001:db8::1]:80", "/.hidden", "hidden"),
        ("http://example.com/a%2F..%2Fb", "example.com", "/a%2F..%2Fb", "a_.._b"),
    ],
)
def test_a_uri_is_read(text: str, host: str, path: str, name: str) -> None:
    assert is_remote(text)
    found = parse_reference(text, "input 'x'")
    assert (found.host, found.path, found.name, found.sha256) == (host, path, name, None)


def test_a_digest_is_the_fragment_or_a_key_of_its_own() -> None:
    found = parse_reference(f"s3://models/mlp.pef#sha256={DIGEST.upper()}", "x")
    assert (found.uri, found.sha256) == ("s3://models/mlp.pef", DIGEST)
    assert found.text == f"s3://models/mlp.pef#sha256={DIGEST}"
    assert text_of({"uri": "s3://models/mlp.pef", "sha256": DIGEST}, "x") == found.text
    assert text_of({"uri": "/data/a b", "sha256": DIGEST}, "x") == f"file:///data/a%20b#sha256={DIGEST}"
    assert text_of({"uri": "plain"}, "x") == text_of("plain", "x") == "plain"
    for wrong in ({"uri": found.text, "sha256": DIGEST}, {"url": "x"}, {"uri": "x", "sha256": "12"}, 3, None):
        with pytest.raises(InvalidArgument):
            text_of(wrong, "input 'x'")


@pytest.mark.parametrize(
    "text",
    [
        "ftp://host/x", "s3://", "s3://UPPER/x", "s3://b/x", "s3://models/../x", "s3://models/a?versionId=1",
        "http://", "http:///x", "http://user:secret@host/x", "http://host:0/x", "http://host:99999/x",
        "http://host/a b",
        "http://host/\r\nHost: x", "s3://models/x#md5=1", "s3://models/x#sha256=12", "https://host/" + "a" * 5000,
    ],
)  # fmt: skip
def test_a_malformed_uri_is_refused_with_its_slot(text: str) -> None:
    with pytest.raises(InvalidArgument, match="input 'x'"):
        parse_reference(text, "input 'x'")


def test_a_bucket_that_cannot_be_is_told_what_buckets_are_called() -> None:
    with pytest.raises(InvalidArgument, match=r"'b' is not a bucket's name; expected 3 to 63 lower-case letters"):
        parse_reference("s3://b/x", "input 'x'")


def test_outputs_go_below_a_prefix() -> None:
    assert parse_output("s3://models/run").uri == parse_output("s3://models/run/").uri == "s3://models/run/"
    assert parse_output("s3://models").path == ""
    for wrong in ("http://host/x", f"s3://models/x#sha256={DIGEST}"):
        with pytest.raises(InvalidArgument):
            parse_output(wrong)


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254", "127.0.0.1", "0.0.0.0", "100.100.100.200", "::1", "::", "fe80::1", "fd00:ec2::254",
        "::ffff:169.254.169.254", "::ffff:127.0.0.1", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "224.0.0.1",
        "255.255.255.255", "10.1.2.3", "192.168.0.5", "172.16.3.4", "100.64.0.1", "fd12::5", "fec0::1", "::127.0.0.1",
        "64:ff9b:1::7f00:1", "::ffff:10.0.0.1", "2002:a00:1::", "ff0e::1",
    ],
)  # fmt: skip
def test_what_is_not_public_is_refused_by_default(address: str) -> None:
    assert find_refusal(ipaddress.ip_address(address), parse_networks(REFUSED_NETWORKS.default)) is not None


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1"])
def test_other_machines_are_not(address: str) -> None:
    assert find_refusal(ipaddress.ip_address(address), parse_networks(REFUSED_NETWORKS.default)) is None


def test_the_setting_may_be_none_and_is_checked() -> None:
    assert parse_networks("none") == ()
    with pytest.raises(InvalidArgument, match="networks such as"):
        parse_networks("10.0.0.0/40")
