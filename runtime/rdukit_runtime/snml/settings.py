"""Settings of SNML."""

import os
from collections.abc import Mapping
from typing import Final

from rdukit.settings import Setting

#: Source: runtime reference 7.1.
DEFAULT_PORT: Final = 50053

SNML_PORT: Final = Setting(
    "snml.port",
    DEFAULT_PORT,
    "TCP port of SNML on the loopback address; 0: any free one; -1: only the UNIX socket.",
    int,
)

SNML_SETTINGS: Final = (SNML_PORT,)

#: Variable that names the server for clients: ``unix:PATH``, ``HOST:PORT`` or a path.
SERVER_VARIABLE: Final = "SNML_SERVER"


def server_address(environ: Mapping[str, str] | None = None) -> str | None:
    """The address in ``$SNML_SERVER``, or ``None`` if it is not set."""
    return (os.environ if environ is None else environ).get(SERVER_VARIABLE, "").strip() or None
