"""Image of a ModelBox: names that the builder and the starters of an image share, and unpacking of its folder."""

import io
import tarfile
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Final

from rdukit.errors import InvalidArgument

#: Image with all built-in boxes; images of other boxes are based on it.
DEFAULT_BASE: Final = "rdukit/modelbox:latest"
#: Ports inside the container.
REST_PORT: Final = 9000
GRPC_PORT: Final = 9001
#: User and group of a container's processes; the base images call the user ``rdukit``.
USER_ID: Final = 10001
STATE_FOLDER: Final = "/var/lib/rdukit"
BOX_FOLDER: Final = "/opt/rdukit/box"
#: Prefix of a box's labels; the first label holds the box's name.
LABEL_PREFIX: Final = "dev.rdukit.box."
BOX_LABEL: Final = f"{LABEL_PREFIX}name"
#: Maximum bytes of a box's files in total.
MAX_BOX_BYTES: Final = 4 << 20


class BoxEnd(StrEnum):
    """Why a box ended or did not start; the detail ``end`` of the ``Unavailable`` that ``start`` raises."""

    #: The box exited, or exceeded its memory limit.
    EXITED = "exited"
    #: The host killed the box by SIGKILL, not for exceeding a limit.
    KILLED = "killed"
    #: The box ran, but missed the deadline for being ready.
    LATE = "late"
    #: Terminated by its fence for exceeding its disk limit.
    DISK_FULL = "disk-full"
    #: The runner of boxes stopped it: by an administrator, for another job, or at its time limit.
    WITHDRAWN = "withdrawn"
    PREEMPTED = "preempted"
    TIMED_OUT = "timed-out"


def unpack_box(blocks: Iterable[bytes], folder: Path) -> None:
    """Write the regular files of a box's folder, a tar from an image, below ``folder``.

    Raises:
        InvalidArgument: the tar is too large for a box, is not a tar, or has a path that leaves the folder.
    """
    data = bytearray()
    for block in blocks:
        data += block
        if len(data) > 2 * MAX_BOX_BYTES:
            raise InvalidArgument(f"the image's {BOX_FOLDER} has more than the {MAX_BOX_BYTES} bytes of a box")
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member in tar:
                # The tar's first folder is the last part of BOX_FOLDER.
                path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
                if not member.isreg() or member.issparse() or path == PurePosixPath():
                    continue
                if ".." in path.parts or path.is_absolute():
                    raise InvalidArgument(f"the image's {BOX_FOLDER} has {member.name!r}, which leaves its folder")
                content = tar.extractfile(member)
                assert content is not None
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read())
    except (tarfile.TarError, OSError, EOFError) as cause:
        raise InvalidArgument(f"the image's {BOX_FOLDER} cannot be read: {cause}") from cause
