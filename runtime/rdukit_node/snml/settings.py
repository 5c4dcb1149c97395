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

SNML_TLS_CERTIFICATE: Final = Setting(
    "snml.tls_certificate", "", "File with the certificate of SNML's TCP port; empty: it speaks plainly.", str
)
SNML_TLS_KEY: Final = Setting("snml.tls_key", "", "File with the key of `snml.tls_certificate`.", str)
SNML_TLS_CA: Final = Setting(
    "snml.tls_ca", "", "File with the authority whose certificates SNML's TCP callers must have; empty: none.", str
)

SNML_SETTINGS: Final = (SNML_PORT, SNML_TLS_CERTIFICATE, SNML_TLS_KEY, SNML_TLS_CA)

#: Variable that names the server for clients: ``unix:PATH``, ``HOST:PORT`` or a path.
SERVER_VARIABLE: Final = "SNML_SERVER"


def server_address(environ: Mapping[str, str] | None = None) -> str | None:
    """The address in ``$SNML_SERVER``, or ``None`` if it is not set."""
    return (os.environ if environ is None else environ).get(SERVER_VARIABLE, "").strip() or None
