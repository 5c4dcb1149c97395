"""Addresses by which ranks of several machines reach each other, chosen and tried before torch connects the ranks.

gloo's default is the address of the machine's own name. Where that is a loopback address, as Debian installs it, gloo
waits for the time limit of a collective. Here a rank takes the interface on its route to the others, and tries to reach
the next machine. ``GLOO_SOCKET_IFNAME``, torch's variable, chooses an interface instead. Source: ours.
"""

import fcntl
import ipaddress
import json
import os
import secrets
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, PeerLost
from rdukit.files.owned import own_process
from rdukit.system.process import own_place
from rdukit_node.leases.launch import LOOPBACK
from rdukit_runtime.collectives.membership import Address, all_ranks, name_ranks
from rdukit_runtime.collectives.ports import RankPorts
from rdukit_runtime.collectives.rank_port import own_port
from rdukit_runtime.engine.torch_private import Store

#: Seconds that a connection may take.
CONNECT_S: Final = 2.0
#: Failures that an error shows.
_SHOWN: Final = 4
INTERFACE: Final = "GLOO_SOCKET_IFNAME"
_LOOPBACK_INTERFACE: Final = "lo"
#: Source: netdevice(7), ``SIOCGIFADDR``.
_GET_ADDRESS: Final = 0x8915


@dataclass(frozen=True, slots=True)
class PortCard:
    """A rank's part in the opening of a group.

    Args:
        key: proposed key of the group; rank 0's counts. machine: name of the machine; empty: unknown.
    """

    transport: str
    key: str
    machine: str
    place: Address | None

    @property
    def text(self) -> str:
        """Return the form in which the ranks exchange it."""
        return json.dumps(astuple(self))

    def find_place(self, machine: str) -> Address | None:
        """Return the port's address as seen from a machine; None: there is none, or it cannot be reached from there."""
        if self.place is None or not _is_loopback(self.place[0]) or self.machine == machine != "":
            return self.place
        return None


def read_card(text: str) -> PortCard:
    """Return the card in a text of ``PortCard.text``."""
    transport, key, machine, place = json.loads(text)
    return PortCard(str(transport), str(key), str(machine), None if place is None else (str(place[0]), int(place[1])))


def find_machine() -> str:
    """Return a name of this machine's boot and process namespace; empty: the system does not tell them."""
    try:
        return own_place()
    except OSError:
        return ""


def exchange_texts(store: Store, name: str, rank: int, size: int, text: str) -> list[str]:
    """Return each rank's text, by rank; waits for all ranks.

    Raises:
        RuntimeError: ranks did not come within the store's limit; the message has their numbers.
    """
    keys = [f"rdukit/{name}/{of}" for of in range(size)]
    store.set(keys[rank], text)
    try:
        is_fast = store.has_extended_api()  # type: ignore[attr-defined]  # what torch's stub lacks
        values = store.multi_get(keys) if is_fast else map(store.get, keys)
        return [bytes(value).decode() for value in values]
    except RuntimeError as cause:
        if missing := find_missing(store, keys):
            raise RuntimeError(f"{name_ranks(missing)} did not come") from cause
        raise


def find_missing(store: Store, keys: Sequence[str]) -> list[int]:
    """Return the places of keys that are not set; empty: the store does not answer."""
    with suppress(RuntimeError):
        return [of for of, key in enumerate(keys) if not store.check([key])]
    return []


def join_network(store: Store, rank: int, size: int, meeting: str | None) -> RankPorts:
    """Choose this rank's interface for torch's connections, and try to reach the next machine. All ranks call this.

    Args:
        store: at which the ranks meet. meeting: host at which it is served; None: unknown.
    Raises:
        InvalidArgument: ranks were told different numbers of ranks, or a rank's ``GLOO_SOCKET_IFNAME`` names no
            interface with an address; all ranks raise it. Or another process has this rank.
        PeerLost: a rank cannot reach another machine; all ranks raise it.
        RuntimeError: torch's; ranks did not come.
    """
    claim_rank(store, rank, size)
    check_sizes(store, rank, size)
    given = _chosen_interface()
    own = _given_address(given) if given else find_own_address(meeting) if meeting else ""
    said = exchange_texts(store, "address", rank, size, own or f"!{_name_interfaces()}" if given else own)
    if wrong := [f"rank {of} has {text[1:]}" for of, text in enumerate(said) if text.startswith("!")]:
        raise InvalidArgument(
            f"${INTERFACE} names no interface that has an address; expected one of a machine's: {'; '.join(wrong)}"
        )
    others = [text for text in said if text and not _is_loopback(text)]
    if others and not given and (not own or _is_loopback(own)):  # this machine's name stands for itself
        own = find_own_address(others[0])
    if own and not given:
        use_interface_of(own)
    return _try_next(store, rank, size, own)


def claim_rank(store: Store, rank: int, size: int) -> None:
    """Take a rank's place for this process, which keeps it at this store.

    Raises:
        InvalidArgument: another process has taken it.
    """
    mine = f"process {os.getpid()} on {socket.gethostname()} {own_process().mark}"
    held = bytes(store.compare_set(f"rdukit/process/{rank}", "", mine)).decode()
    if held != mine:
        raise InvalidArgument(
            f"{held.rpartition(' ')[0]} is rank {rank} of {size} already, and this process has the same rank; start "
            "one process for each rank, and each launch with a new store (another port or file)"
        )


def check_sizes(store: Store, rank: int, size: int) -> None:
    """Compare the number of ranks with rank 0's before waiting for others, some of whom may not exist.

    Raises:
        InvalidArgument: ranks have different numbers; all that differ from rank 0, and rank 0, raise it.
        RuntimeError: torch's; ranks did not come.
    """
    store.set(f"rdukit/size/{rank}", str(size))
    first = bytes(store.get("rdukit/size/0")).decode()
    told = {0: first, rank: str(size)}
    if first == str(size):
        told = dict(enumerate(exchange_texts(store, "size", rank, size, str(size))))
    if wrong := [f"rank {of} {text}" for of, text in told.items() if text != first]:
        raise InvalidArgument(
            f"ranks have different numbers of ranks: rank 0 counts {first}, {', '.join(wrong)}; start all ranks by one "
            "launcher, with one number of ranks"
        )


def _try_next(store: Store, rank: int, size: int, own: str) -> RankPorts:
    port = own_port(own)
    key = secrets.token_hex(8)
    said = exchange_texts(store, "place", rank, size, json.dumps([own, port.place[1] if port.place else 0, key]))
    told = [json.loads(text) for text in said]
    places = [(str(host), int(number)) for host, number, _ in told]
    held = [place if place[1] else None for place in places]
    ports = RankPorts(port, str(told[0][2]), held, all_ranks(size), rank)
    failures = exchange_texts(store, "reached", rank, size, _try_reach(rank, places))
    if failed := [text for text in failures if text]:
        more = f"; and {len(failed) - _SHOWN} ranks more" if len(failed) > _SHOWN else ""
        raise PeerLost(
            f"machines of the ranks do not reach each other: {'; '.join(failed[:_SHOWN])}{more}; set ${INTERFACE} on "
            "each machine to an interface that leads to the others, and open their ports to each other", rank=rank,
        )  # fmt: skip
    return ports


def _try_reach(rank: int, places: Sequence[Address]) -> str:
    """Return why this rank does not reach the next one that has another address; empty: it does."""
    own, size = places[rank][0], len(places)
    for step in range(1, size):
        peer = (rank + step) % size
        address, port = places[peer]
        if not port or address == own:
            continue
        try:
            socket.create_connection((address, port), CONNECT_S).close()
        except OSError as cause:
            return f"rank {rank} at {own or 'an unknown address'} does not reach rank {peer} at {address} ({cause})"
        return ""
    return ""


def find_own_address(meeting: str | None) -> str:
    """Return this machine's address on the route to ``meeting``, where the ranks met; loopback if that is None."""
    with suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(meeting or LOOPBACK, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    return LOOPBACK


def find_gloo_address(meeting: str | None) -> str:
    """Return the address of the interface that torch's connections use; without a choice, that to ``meeting``."""
    given = _chosen_interface()
    return (_given_address(given) if given else "") or find_own_address(meeting)


def use_interface_of(address: str) -> None:
    """Let torch's connections use the interface with ``address``. A choice of the user stays."""
    if INTERFACE not in os.environ and (name := _find_interface(address)) is not None:
        os.environ[INTERFACE] = name


def _find_interface(address: str) -> str | None:
    if _is_loopback(address):
        return _LOOPBACK_INTERFACE if Path(f"/sys/class/net/{_LOOPBACK_INTERFACE}").exists() else None
    return next((name for _, name in socket.if_nameindex() if address in _addresses_of(name)), None)


def _chosen_interface() -> str:
    """Return the user's interface, the first of several; empty: there is no choice."""
    return os.environ.get(INTERFACE, "").partition(",")[0].strip()


def _given_address(interface: str) -> str:
    """Return the first address of an interface; empty: there is no such interface, or it has none."""
    return next(iter(_addresses_of(interface)), "")


def _name_interfaces() -> str:
    return ", ".join(name for _, name in socket.if_nameindex() if _addresses_of(name))


def _addresses_of(interface: str) -> list[str]:
    """Return an interface's first IPv4 address, and its global IPv6 ones.

    Source: netdevice(7); proc(5), ``/proc/net/if_inet6``.
    """
    found = list[str]()
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        found.append(socket.inet_ntoa(fcntl.ioctl(probe, _GET_ADDRESS, request)[20:24]))
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, scope, _, name = line.split()
            if name == interface and scope == "00":
                found.append(str(ipaddress.IPv6Address(bytes.fromhex(digits))))
    return found


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False
