"""Parts of a session: compiling, loading, running, and several graphs in one PEF; and the process's session itself."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sambaflow.samba.session import SambaSession
    from sambaflow.sessions.loaded import LoadedPef


_current: "SambaSession"


def set_current_session(session: "SambaSession") -> None:
    """Make ``session`` the process's one; ``sambaflow.samba`` does so when it is imported."""
    global _current
    _current = session


def current_session() -> "SambaSession":
    """Return the process's session, ``samba.session``.

    Modules below ``sambaflow.samba`` use this function: an import of ``samba`` itself would be circular.
    """
    return _current


def loaded_pef() -> "LoadedPef":
    """Return the loaded PEF.

    Raises:
        RuntimeFault: no PEF is loaded.
    """
    return current_session()._loaded()


def is_loaded(name: str) -> bool:
    """Return whether a PEF is loaded that has a tensor of this name."""
    loaded = current_session().loaded
    return loaded is not None and loaded.knows(name)


def has_value(name: str) -> bool:
    """Return whether a PEF is loaded that has a tensor of this name, and the device has a value for it."""
    loaded = current_session().loaded
    return loaded is not None and loaded.has_value(name)


def pull_parameters(*values: object) -> None:
    """Copy newer values of the device to the parameters among ``values``."""
    if (loaded := current_session().loaded) is not None:
        loaded.copies.pull_all(values)
