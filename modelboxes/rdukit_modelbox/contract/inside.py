"""Files that a box's YAML names: only inside its own folder."""

from pathlib import Path

from rdukit.errors import InvalidArgument


def find_inside(folder: Path, relative: str) -> Path:
    """The regular file ``relative`` to ``folder``, links resolved.

    Raises:
        InvalidArgument: it is outside the folder (by ``..`` or by a link), not there, or not a file.
    """
    base = folder.resolve()
    path = (base / relative).resolve()
    if base not in path.parents:
        raise InvalidArgument(f"{relative!r} leads outside the box's folder; legal: a file in or below {folder}")
    if not path.is_file():
        raise InvalidArgument(f"there is no file {relative!r} in {folder}")
    return path
