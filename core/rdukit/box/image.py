"""Image of a ModelBox: names that its builder and its starters share, and the unpacking of its folder."""

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
#: Most bytes of a box's files in total.
MAX_BOX_BYTES: Final = 4 << 20


class BoxEnd(StrEnum):
    """The end of a box, or why it did not begin; ``Unavailable`` of ``start`` has it as the detail ``end``."""

    #: By itself, or for its memory limit.
    EXITED = "exited"
    #: Killed by SIGKILL, but not for exceeding a limit: the host did it.
    KILLED = "killed"
    #: The box ran, but missed the deadline for being ready.
    LATE = "late"
    #: Terminated by its fence for exceeding its disk limit.
    DISK_FULL = "disk-full"
    #: What runs boxes took back what it had given it: an administrator did, for another, at its time limit.
    WITHDRAWN = "withdrawn"
    PREEMPTED = "preempted"
    TIMED_OUT = "timed-out"


def unpack_box(blocks: Iterable[bytes], folder: Path) -> None:
    """Write the regular files of a box's folder, which comes out of an image as a tar, below ``folder``.

    Raises:
        InvalidArgument: it is larger than a box may be, is no tar, or a path in it leaves the folder.
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
