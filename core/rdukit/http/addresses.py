"""Addresses that a box may connect to on a caller's behalf: public ones, and never those that only the box may reach.

The check is on the address of the connection, so a name that later resolves to another address has no advantage.
"""

import ipaddress
import socket
from collections.abc import Sequence
from functools import cache
from typing import Final

from rdukit.errors import InvalidArgument, PermissionDenied, Unavailable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Loopback, private, link-local, multicast and reserved networks. Source: IANA's registries of special-purpose
#: addresses; cloud metadata addresses are in them.
NOT_PUBLIC: Final = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 "
    "192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3 "
    "::/96 64:ff9b:1::/48 100::/64 2001:2::/48 2001:db8::/32 3fff::/20 5f00::/16 fc00::/7 fe80::/9 ff00::/8"
)


def parse_networks(text: str) -> tuple[Network, ...]:
    """Parse networks in CIDR form, separated by spaces or commas; ``none`` for none.

    Raises:
        InvalidArgument: a word is not a network.
    """
    words = text.replace(",", " ").split()
    try:
        return () if words == ["none"] else tuple(ipaddress.ip_network(word) for word in words)
    except ValueError as cause:
        raise InvalidArgument(f"{cause}; expected networks such as 10.0.0.0/8, or none") from cause


def find_refusal(address: Address, refused: Sequence[Network]) -> Network | None:
    """Find the refused network that contains ``address``. An IPv4 address inside an IPv6 one counts as IPv4. Pure."""
    candidates: list[Address] = [address]
    if isinstance(address, ipaddress.IPv6Address):
        embedded = [address.ipv4_mapped, address.sixtofour, address.teredo[1] if address.teredo else None]
        candidates += [inner for inner in embedded if inner is not None]
        if address in ipaddress.ip_network("64:ff9b::/96"):
            candidates.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return next((net for net in refused for one in candidates if one.version == net.version and one in net), None)


@cache
def _not_public() -> tuple[Network, ...]:
    return parse_networks(NOT_PUBLIC)


def is_public(address: str) -> bool:
    """Return whether an IP address may be reached on a caller's behalf. Pure."""
    found: Address = ipaddress.ip_address(address.partition("%")[0])
    inner = (found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None) or found
    return inner.is_global and find_refusal(found, _not_public()) is None


def connect_allowed(
    host: str, port: int, timeout_s: float, refused: Sequence[Network], allowed: Sequence[Network] = ()
) -> socket.socket:
    """Connect to the first address of ``host`` that answers and is not refused, or is in ``allowed``.

    Raises:
        PermissionDenied: all its addresses are in refused networks.
        Unavailable: the name is unknown, or no address answers.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as cause:
        raise Unavailable(f"unknown host {host!r}: {cause}") from cause
    refusal: Network | None = None
    failure: OSError | None = None
    for family, kind, protocol, _, place in found:
        address = ipaddress.ip_address(str(place[0]).partition("%")[0])
        network = find_refusal(address, refused)
        if network is not None and find_refusal(address, allowed) is None:
            refusal = network
            continue
        connection = socket.socket(family, kind, protocol)
        connection.settimeout(timeout_s)
        try:
            connection.connect(place)
        except OSError as cause:
            connection.close()
            failure = cause
            continue
        return connection
    if failure is None and refusal is not None:
        raise PermissionDenied(
            f"host {host!r} has an address in {refusal}, from which boxes never fetch; use another host, or ask an "
            "operator to add its network to artifacts.allowed_networks"
        )
    raise Unavailable(f"{host}:{port} does not answer: {failure}") from failure
