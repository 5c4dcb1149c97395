"""Where a box may connect to on a caller's word: never to addresses that would give the caller the box's own powers.

The check is on the address that is connected to, so a name that points elsewhere the next time gains nothing.
"""

import ipaddress
import socket
from collections.abc import Sequence

from rdukit.errors import InvalidArgument, PermissionDenied, Unavailable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_networks(text: str) -> tuple[Network, ...]:
    """Networks in CIDR form, apart by spaces or commas; ``none`` for none.

    Raises:
        InvalidArgument: one is not a network.
    """
    words = text.replace(",", " ").split()
    try:
        return () if words == ["none"] else tuple(ipaddress.ip_network(word) for word in words)
    except ValueError as cause:
        raise InvalidArgument(f"{cause}; legal: networks such as 10.0.0.0/8, or none") from cause


def find_refusal(address: Address, refused: Sequence[Network]) -> Network | None:
    """The network for which ``address`` is refused. An IPv4 address inside an IPv6 one counts as itself. Pure."""
    candidates: list[Address] = [address]
    if isinstance(address, ipaddress.IPv6Address):
        embedded = [address.ipv4_mapped, address.sixtofour, address.teredo[1] if address.teredo else None]
        candidates += [inner for inner in embedded if inner is not None]
        if address in ipaddress.ip_network("64:ff9b::/96"):
            candidates.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return next((net for net in refused for one in candidates if one.version == net.version and one in net), None)


def connect_allowed(host: str, port: int, timeout_s: float, refused: Sequence[Network]) -> socket.socket:
    """A connection to the first address of ``host`` that answers and is not refused.

    Raises:
        PermissionDenied: all its addresses are in refused networks.
        Unavailable: unknown name, or no address answers.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as cause:
        raise Unavailable(f"host {host!r} is not known: {cause}") from cause
    refusal: Network | None = None
    failure: OSError | None = None
    for family, kind, protocol, _, place in found:
        network = find_refusal(ipaddress.ip_address(str(place[0]).partition("%")[0]), refused)
        if network is not None:
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
            f"host {host!r} is at an address in {refusal}, which boxes never fetch from; use another host, or let an "
            "operator change the setting artifacts.refused_networks"
        )
    raise Unavailable(f"{host}:{port} does not answer: {failure}") from failure
