"""Which way data takes between two RDUs: over the PCIe links of both. Pure.

Each RDU has numbered links; which one leads to which other RDU is not public. Here RDU ``a`` reaches RDU ``b`` by its
link number ``b mod links``, and a route whose link is down takes the next one that is up.

Source: runtime reference 7.2 (per RDU pair: expected and actual routes, up or down); the numbering is ours.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rdukit.proto import snml_pb2 as pb
from rdukit_node.snml.components import full_path, is_within
from rdukit_node.snml.messages import as_text

Row = Mapping[str, Any]


def routes(inventory: Iterable[Row], comp_name: str = "", *, only_local: bool) -> list[pb.Route]:
    """Routes between each ordered pair of different RDUs; ``only_local``: of the same XRDU.

    ``comp_name`` keeps those that begin at this component or below it.
    """
    rows = list(inventory)
    rdus = [full_path(as_text(row.get("comp_name"))) for row in rows if row.get("kind") == "RDU"]
    links: dict[str, list[tuple[str, bool]]] = {rdu: [] for rdu in rdus}
    for row in rows:
        path = full_path(as_text(row.get("comp_name")))
        rdu = path.rpartition("/")[0]
        if row.get("kind") == "PCIE" and rdu in links:
            links[rdu].append((path, _is_up(row)))
    alive = {full_path(as_text(row.get("comp_name"))) for row in rows if row.get("kind") == "RDU" and _is_up(row)}
    found = []
    for a, source in enumerate(rdus):
        if comp_name and not is_within(source, full_path(comp_name)):
            continue
        for b, destination in enumerate(rdus):
            if a == b or (only_local and source.rpartition("/")[0] != destination.rpartition("/")[0]):
                continue
            are_alive = source in alive and destination in alive
            found.append(_route(source, destination, links[source], links[destination], (b, a), are_alive))
    return found


def _route(
    source: str,
    destination: str,
    outgoing: Sequence[tuple[str, bool]],
    incoming: Sequence[tuple[str, bool]],
    numbers: tuple[int, int],
    are_alive: bool,
) -> pb.Route:
    out_expected, out_actual = _link(outgoing, numbers[0])
    in_expected, in_actual = _link(incoming, numbers[1])
    is_up = are_alive and out_actual is not None and in_actual is not None
    return pb.Route(
        source=source,
        destination=destination,
        expected=[source, *_known(out_expected, in_expected), destination],
        actual=[source, *_known(out_actual, in_actual), destination] if is_up else [],
        is_up=is_up,
    )


def _link(links: Sequence[tuple[str, bool]], number: int) -> tuple[str | None, str | None]:
    """The link with that number, and the first one from it on that is up."""
    if not links:
        return None, None
    start = number % len(links)
    order = [*links[start:], *links[:start]]
    return order[0][0], next((path for path, is_up in order if is_up), None)


def _known(*paths: str | None) -> list[str]:
    return [path for path in paths if path is not None]


def _is_up(row: Row) -> bool:
    return row.get("presence") == "Present" and row.get("health") in {"Online", "Degraded"}
