"""Variables of the vendor's collectives and runtime, which launch scripts set: each acts, or is reported as having no
effect.

Source: distributed reference 1.2 and runtime reference (scripts on real systems). If no document describes a variable,
its name decides. Their own modules read ``SF_RNT_LOG_LEVEL`` and ``SF_RNT_TILE_AFFINITY``.
"""

from collections.abc import Mapping
from typing import Final

from rdukit.errors import InvalidArgument, suggest

_SWITCH: Final = frozenset({"0", "1"})
_NUMBER: Final = frozenset[str]()
#: Variables without effect: their valid values (``None``: any text; empty: any positive number), and the reason.
WITHOUT_EFFECT: Final[Mapping[str, tuple[frozenset[str] | None, str]]] = {
    "SAMBA_CCL_HIERARCHICAL_ALLREDUCE": (_SWITCH, "values are added in rank order for every algorithm"),
    "SAMBA_CCL_DYNAMIC_P2P_COMM": (_SWITCH, "ranks need no pairwise connections"),
    "SAMBA_CCL_NUM_WORKERS": (_NUMBER, "each rank adds its own slice, in one thread"),
    "FI_VERBS_IFACE": (None, "ranks use TCP, and GLOO_SOCKET_IFNAME chooses the interface"),
    "SF_RNT_NUMA_BIND": (frozenset({"0", "1", "2"}), "ranks run on the cores that the launcher gives them"),
    "SF_RNT_FSM_POLL_BUSY_WAIT": (_SWITCH, "sections run in the program's process, so nothing is polled"),
    "SF_RNT_DMA_POLL_BUSY_WAIT": (_SWITCH, "sections run in the program's process, so nothing is polled"),
}
#: Variables that are read as settings.
ACTING: Final = ("SAMBA_CCL_USE_PCIE_TRANSPORT", "SAMBA_CCL_ASYNC_ALLREDUCE", "CCL_TIMEOUT")
_PREFIX: Final = "SAMBA_CCL_"


def find_notes(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each set variable without effect (pure).

    Raises:
        InvalidArgument: a variable has a value that it cannot have.
    """
    notes = list[str]()
    for name, (legal, why) in WITHOUT_EFFECT.items():
        value = environ.get(name, "").strip()
        if not value:
            continue
        is_valid = legal is None or (value in legal if legal else value.isdecimal() and int(value) > 0)
        if not is_valid:
            shown = ", ".join(sorted(legal)) if legal else "a positive number"
            raise InvalidArgument(f"${name}: {value!r} is not valid; expected {shown}")
        if value != "0":
            notes.append(f"${name}={value} has no effect here: {why}")
    known = [*ACTING, *WITHOUT_EFFECT]
    for name in sorted(environ):
        if name.startswith(_PREFIX) and name not in known:
            notes.append(f"${name} is not known and has no effect.{suggest(name, known)}")
    return notes
