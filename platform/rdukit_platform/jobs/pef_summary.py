"""Summaries of tenants' PEFs: this process reads small indexes, a separate process with limits reads larger ones."""

import functools
import json
import sys
from pathlib import Path
from typing import Final

from rdukit.errors import RdukitError, Unavailable, error_from_body
from rdukit.pef.file import Answers, PefSummary, PefTooLarge, read_summary
from rdukit_platform.artifacts.store import BlobStore
from rdukit_platform.catalog.fenced_reader import READERS, run_reader

#: Largest index and table of contents that this process reads itself, in a few milliseconds.
SMALL_BYTES: Final = 1 << 20
_PROGRAM: Final = """
import dataclasses, json, sys
from pathlib import Path
from rdukit.errors import RdukitError
from rdukit.pef.file import read_summary
try:
    print(json.dumps(dataclasses.asdict(read_summary(Path(sys.argv[1]))), default=sorted))
except RdukitError as error:
    print(json.dumps(error.body()))
"""


@functools.lru_cache(maxsize=1024)
def summary_of(store: BlobStore, digest: str, tenant_id: str) -> PefSummary:
    """Return the summary of a tenant's PEF in the store. It is cached, because blobs do not change.

    Raises as ``summary_of_file``.
    """
    with store.local(digest) as blob:
        return summary_of_file(blob, tenant_id)


def summary_of_file(path: Path, tenant_id: str) -> PefSummary:
    """Return the summary of a tenant's PEF.

    Raises:
        PefCorrupt, PefVersionMismatch: it cannot be read. InvalidArgument: reading it exceeds the reader's limits.
        Overloaded: too many PEFs are being read already.
    """
    try:
        return read_summary(path, SMALL_BYTES)
    except PefTooLarge:
        with READERS.one_of(tenant_id):
            end = run_reader([sys.executable, "-c", _PROGRAM, str(path)], path)
    try:
        said = json.loads(end.answer)
        if "error" in said:
            raise error_from_body(said, RdukitError)
        answers = None if said["answers"] is None else Answers(said["answers"])
        parameters = frozenset(map(str, said["parameters"]))
        return PefSummary(
            int(said["tiles"]), bool(said["averages_gradients"]), answers, bool(said["inference"]), parameters
        )
    except (ValueError, LookupError, TypeError) as cause:
        raise Unavailable(f"the reader of a PEF ended with status {end.status}: {end.words[-300:]}") from cause
