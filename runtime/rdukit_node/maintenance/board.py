"""The cordons and maintenance windows of one node, and which tiles they keep from being allocated. Pure.

Source: ours; see ``model``.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Final

from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit.hardware import NodeSpec
from rdukit_node.inventory import ComponentKind, find_component, node_tiles
from rdukit_node.maintenance.model import Cordon, Draining, MaintenanceChanges, MaintenanceWindow

#: Windows that may be planned at once.
MAX_WINDOWS: Final = 256
_KINDS: Final = frozenset({ComponentKind.NODE, ComponentKind.XRDU, ComponentKind.RDU, ComponentKind.TILE})


class MaintenanceBoard:
    """Parts of a node that administrators keep from being allocated."""

    def __init__(self, node: NodeSpec) -> None:
        self._node: Final = node
        #: By component.
        self.cordons: Final[dict[str, Cordon]] = {}
        #: By id: planned and current windows; ended ones are removed.
        self.windows: Final[dict[str, MaintenanceWindow]] = {}
        #: Windows whose start was reported.
        self._begun: Final[set[str]] = set()
        self._new: Final[dict[str, None]] = {}
        self._gone: Final[dict[str, None]] = {}
        self._new_windows: Final[dict[str, None]] = {}
        self._gone_windows: Final[dict[str, None]] = {}

    def restore(self, cordons: Iterable[Cordon], windows: Iterable[MaintenanceWindow], now_ns: int) -> None:
        """Start from the rows of an earlier daemon, without those of components that this node lacks."""
        for cordon in cordons:
            if self._has(cordon.component):
                self.cordons[cordon.component] = cordon
        for window in windows:
            if self._has(window.component):
                self.windows[window.window] = window
                if window.has_begun(now_ns):
                    self._begun.add(window.window)

    # -- changing ----------------------------------------------------------------------------------------------------

    def cordon(self, component: str, reason: str, by: str, now_ns: int) -> Cordon:
        """Keep a part from being allocated; leases that are there stay. Ends a drain of the same part.

        Raises:
            NotFound: there is no such component. InvalidArgument: the component has no tiles.
        """
        return self._put(Cordon(self._checked(component), reason, by, self._since(component, now_ns)))

    def drain(self, component: str, reason: str, by: str, deadline_s: float | None, now_ns: int) -> Cordon:
        """Stop allocating a part, and wait for the leases on it, ``deadline_s`` at most. Raises: as above."""
        deadline = None if deadline_s is None else now_ns + int(deadline_s * 1e9)
        since = self._since(component, now_ns)
        return self._put(Cordon(self._checked(component), reason, by, since, True, deadline))

    def uncordon(self, component: str, now_ns: int) -> list[Cordon]:
        """Undo the cordons of a part and of its parts. Returns them.

        Raises:
            Conflict: a cordon above it, or a maintenance window, keeps it. NotFound: nothing is cordoned there.
        """
        path = self._checked(component)
        for each in self.cordons.values():
            if path.startswith(each.component + "/"):
                raise Conflict(f"{path} is covered by the cordon of {each.component}; uncordon that component")
        for window in self.windows.values():
            if window.has_begun(now_ns) and _is_at_or_below(path, window.component):
                raise Conflict(
                    f"{path} is in maintenance window {window.window} of {window.component}; end that window"
                )
        found = [each for each in self.cordons.values() if _is_at_or_below(each.component, path)]
        if not found:
            known = ", ".join(self.cordons) or "nothing"
            raise NotFound(f"{path} is not cordoned; cordoned: {known}")
        for each in found:
            del self.cordons[each.component]
            self._new.pop(each.component, None)
            self._gone[each.component] = None
        return found

    def plan(self, window: MaintenanceWindow, now_ns: int) -> MaintenanceWindow:
        """Add a maintenance window.

        Raises:
            NotFound, InvalidArgument: as ``cordon``; or it ends before it starts, or before now.
            Conflict: there are already ``MAX_WINDOWS`` windows.
        """
        self._checked(window.component)
        if window.ends_at is not None and window.ends_at <= max(window.starts_at, now_ns):
            raise InvalidArgument("the maintenance window ends before its start, or before now; expected a later end")
        if len(self.windows) >= MAX_WINDOWS:
            raise Conflict(f"{MAX_WINDOWS} maintenance windows are already planned, which is the limit; end one")
        self.windows[window.window] = window
        self._new_windows[window.window] = None
        return window

    def end_window(self, window_id: str) -> MaintenanceWindow:
        """End a window now, or cancel it before it begins.

        Raises:
            NotFound: there is no window of this id.
        """
        window = self.windows.pop(window_id, None)
        if window is None:
            known = ", ".join(self.windows) or "none"
            raise NotFound(f"unknown maintenance window {window_id!r}; known: {known}")
        self._begun.discard(window_id)
        self._new_windows.pop(window_id, None)
        self._gone_windows[window_id] = None
        return window

    def advance(self, now_ns: int) -> tuple[list[MaintenanceWindow], list[MaintenanceWindow]]:
        """Return the windows that began since the last call, and remove and return those that are over."""
        over = [each for each in self.windows.values() if each.ends_at is not None and each.ends_at <= now_ns]
        for window in over:
            self.end_window(window.window)
        begun = [each for each in self.windows.values() if each.has_begun(now_ns) and each.window not in self._begun]
        self._begun.update(each.window for each in begun)
        return begun, over

    def clock_stepped(self, step_ns: int) -> None:
        """Shift deadlines by ``step_ns``, by which the wall clock was set; windows are times of that clock."""
        for path, each in self.cordons.items():
            if each.deadline is not None:
                self.cordons[path] = replace(each, deadline=each.deadline + step_ns)
                self._new[path] = None

    # -- looking -----------------------------------------------------------------------------------------------------

    def held_back(self, now_ns: int) -> frozenset[int]:
        """Return flat numbers of tiles that are not allocated."""
        parts = [each.component for each in self.cordons.values()]
        parts += [each.component for each in self.windows.values() if each.has_begun(now_ns)]
        return frozenset().union(*(tiles_below(self._node, path) for path in parts))

    def upcoming(self, now_ns: int) -> tuple[tuple[float, frozenset[int]], ...]:
        """Return the windows that have not begun: start in seconds since the epoch, and their tiles."""
        return tuple(
            (each.starts_at / 1e9, tiles_below(self._node, each.component))
            for each in self.windows.values()
            if not each.has_begun(now_ns)
        )

    def draining(self) -> list[Draining]:
        """Return the parts whose leases must end; those of windows after ``advance``."""
        found = [
            Draining(each.component, tiles_below(self._node, each.component), each.deadline, each.reason)
            for each in self.cordons.values()
            if each.is_draining
        ]
        return found + [
            Draining(each.component, tiles_below(self._node, each.component), each.deadline, each.reason)
            for each in self.windows.values()
            if each.window in self._begun
        ]

    def next_window_change(self) -> int | None:
        """Return when the next window begins or ends; ``None``: no window does."""
        starts = [each.starts_at for each in self.windows.values() if each.window not in self._begun]
        ends = [each.ends_at for each in self.windows.values() if each.ends_at is not None]
        return min([*starts, *ends], default=None)

    def take_changes(self) -> MaintenanceChanges:
        """Return rows that changed since the last call."""
        changes = MaintenanceChanges(
            tuple(self.cordons[path] for path in self._new),
            tuple(self.windows[window] for window in self._new_windows),
            tuple(self._gone),
            tuple(self._gone_windows),
        )
        for news in (self._new, self._new_windows, self._gone, self._gone_windows):
            news.clear()
        return changes

    def validate(self) -> None:
        """Raise ``AssertionError`` if the state contradicts itself."""
        assert all(path == each.component for path, each in self.cordons.items()), "cordons by their component"
        assert all(window == each.window for window, each in self.windows.items()), "windows by their id"
        assert self._begun <= set(self.windows), "windows that began are there"
        assert not set(self._new) & set(self._gone), "a cordon is new or gone"

    def _put(self, cordon: Cordon) -> Cordon:
        self.cordons[cordon.component] = cordon
        self._new[cordon.component] = None
        self._gone.pop(cordon.component, None)
        return cordon

    def _since(self, component: str, now_ns: int) -> int:
        former = self.cordons.get(component)
        return now_ns if former is None else former.since

    def _checked(self, component: str) -> str:
        found = find_component(self._node, component)
        if found.kind not in _KINDS:
            raise InvalidArgument(f"{found.path} has no tiles; expected the node, an XRDU, an RDU or a tile")
        return found.path

    def _has(self, component: str) -> bool:
        try:
            self._checked(component)
        except (NotFound, InvalidArgument):
            return False
        return True


@lru_cache(maxsize=1024)
def tiles_below(node: NodeSpec, path: str) -> frozenset[int]:
    """Return flat numbers of the tiles at or below ``path``."""
    return frozenset(tile.index for tile in node_tiles(node) if _is_at_or_below(tile.path, path))


def _is_at_or_below(path: str, above: str) -> bool:
    return path == above or path.startswith(above + "/")
