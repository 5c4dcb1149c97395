"""Write a PEF: atomically, as the very last step of a compile."""

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rdukit.files.atomic import sha256_of, write_atomic
from rdukit.pef.format import COMMENT, FORMAT_VERSION, INDEX, IR_FOLDER, NATIVE_FOLDER
from rdukit.pef.kernel import KernelGraph
from rdukit.pef.model import Pef, pef_to_dict
from rdukit.pef.operators import check_operators
from rdukit.pef.trust import sign

#: All entries carry one time, so that equal compiles give equal bytes.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_pef(path: Path, pef: Pef, kernels: Mapping[str, KernelGraph], natives: Mapping[str, bytes]) -> None:
    """Write ``pef`` with its kernels (by digest) and native libraries (by the same digests) to ``path``.

    Equal arguments on one installation give equal bytes. A reader never sees a half-written file.

    Raises:
        PefNotAllowed: a kernel has an operator that no PEF may name; nothing is written.
    """
    for kernel in kernels.values():
        check_operators(kernel)
    entries = {IR_FOLDER + digest: kernel.to_json() for digest, kernel in sorted(kernels.items())}
    entries |= {f"{NATIVE_FOLDER}{digest}.so": data for digest, data in sorted(natives.items())}
    digests = {name: sha256_of(data) for name, data in entries.items()}
    index: dict[str, Any] = {"format": list(FORMAT_VERSION), "digests": digests, "pef": pef_to_dict(pef)}
    index["signature"] = sign(json.loads(json.dumps(index)))  # as a reader will have it
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = COMMENT
        archive.writestr(zipfile.ZipInfo(INDEX, _EPOCH), json.dumps(index, sort_keys=True))
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)
    write_atomic(path, buffer.getvalue())
