"""What the operating system refused, as an error of ours: no space, no permission, no such file. Pure."""

import errno
from typing import Final

from rdukit.errors import DiskFull, InvalidArgument, NotFound, PermissionDenied, RdukitError

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: How libraries that write files by themselves say it: Rust's, HDF5's, SQLite's.
_FULL_WORDS: Final = ("No space left on device", f"errno = {errno.ENOSPC}", "disk is full")
_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NO_PATH: Final = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EEXIST, errno.ELOOP})


def find_system_error(error: Exception) -> RdukitError | None:
    """The error of ours that says what ``error`` does, with the file if it is known; None: it is something else."""
    number = error.errno if isinstance(error, OSError) else None
    name = getattr(error, "filename", None)
    where = str(name) if isinstance(name, (str, bytes)) else ""
    detail = {"path": where} if where else {}
    if number in _FULL or (number is None and any(words in str(error) for words in _FULL_WORDS)):
        place = f"{where} cannot be written: " if where else ""
        return DiskFull(f"{place}no space is left on the disk, or of the quota; make room and ask again", **detail)
    if not isinstance(error, OSError) or not where:
        return None
    if number in _FORBIDDEN:
        return PermissionDenied(f"{where}: {error.strerror}; let the user of this process read or write it", **detail)
    if number == errno.ENOENT:
        return NotFound(f"there is no file or folder {where}", **detail)
    if number in _NO_PATH:
        return InvalidArgument(f"{where}: {error.strerror}; legal: another path", **detail)
    return None
