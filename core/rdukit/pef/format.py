"""The container: a zip whose entries are stored, not deflated.

==================  ==================================================================================================
entry               content
==================  ==================================================================================================
``pef.json``        ``{"format": [major, minor], "digests": {entry: sha256}, "signature", "pef": {…}}``; first entry
``ir/<digest>``     a kernel's portable graph (JSON), named by its SHA-256
``so/<digest>.so``  a native library made from that kernel; optional
==================  ==================================================================================================

A reader takes its own major version and any minor version up to its own. No weights, no pickle. Kernels of 1.3 may hold
``rdukit.lstm_layer`` and its gradient, those of 1.4 ``rdukit.grouped_product`` and its. A graph of 1.4 may be the
evaluation graph of another.
"""

from typing import Final

#: Written into every PEF; readers refuse another major, or a newer minor.
FORMAT_VERSION: Final = (1, 4)
#: Zip archive comment, so that ``file`` and people can tell.
COMMENT: Final = b"rdukit PEF"
INDEX: Final = "pef.json"
IR_FOLDER: Final = "ir/"
NATIVE_FOLDER: Final = "so/"
#: Largest entries that a reader takes: 64 MiB of table, 256 MiB of library.
MAX_INDEX_BYTES: Final = 64 << 20
MAX_ENTRY_BYTES: Final = 256 << 20

#: Every native library exports it beside its section: it runs a list of sections.
LIST_RUNNER: Final = "rdukit_run_list"


def section_symbol(digest: str) -> str:
    """The function that the native library of a kernel exports for it."""
    return f"rdukit_section_{digest[:32]}"
