"""A box in a fence: its folders, variables and wires, its start and its end.

In the attempt's folder the box can write ``box`` only. Its log, and every file that decides where this process writes
or connects, is outside: a box may create links in its own folders.
"""

import contextlib
import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

from rdukit.box.image import BoxEnd
from rdukit.box.links import LOCAL_PORTS, MAX_PARTS, PORTS, part_address
from rdukit.errors import InvalidArgument, Unavailable
from rdukit.fence.spec import FenceLimits, FenceSpec
from rdukit.fence.start import absolute_command, launcher_json, program_paths, start_fenced
from rdukit.http.unix_sockets import GRPC_SOCKET, REST_SOCKET, rest_address
from rdukit.interfaces import Closable
from rdukit.pef.trust import derive_key, key_path
from rdukit.settings import SND_STATE, home_folder
from rdukit.system.forks import ForkServer
from rdukit_platform.backends.box_variables import fenced_variables
from rdukit_platform.backends.contract import BoxFence, BoxProcess, BoxSpec

#: The box's own folder, inside the folder of its state.
BOX: Final = "box"
END_S: Final = 5.0


def own_folder(spec: BoxSpec) -> Path:
    """Return the folder of a box's operations, wires and announcement."""
    return spec.state / BOX if spec.fence is not None else spec.state


def start_fenced_box(
    spec: BoxSpec,
    fence: BoxFence,
    program: Sequence[str],
    arguments: Sequence[str],
    log: IO[bytes],
    forks: ForkServer | None = None,
) -> BoxProcess:
    """Start a box in its fence: the program that runs boxes, and its arguments. ``forks``: fork it from that server.

    Raises:
        InvalidArgument: it has no sockets; ports in a fence are unreachable.
    """
    made = prepare_fence(spec, fence, program, arguments)
    if forks is None:
        return start_fenced(made, fence.way, log)
    body = {
        "name": f"box-{spec.box}", "arguments": arguments,
        "fence": json.loads(launcher_json(made, fence.way)),
    }  # fmt: skip
    return forks.fork(body, log.fileno(), others=spec.descriptors)


def prepare_fence(spec: BoxSpec, fence: BoxFence, program: Sequence[str], arguments: Sequence[str]) -> FenceSpec:
    """Make a box's folders its own, and return its fence.

    Raises:
        InvalidArgument: it has no sockets; ports in a fence are unreachable.
    """
    if not spec.has_sockets:
        raise InvalidArgument(f"box {spec.box} is fenced and has no sockets, so it cannot be called")
    spec.state.chmod(0o700)
    for folder in (own_folder(spec), fence.home, *spec.outputs):
        give_folder(folder, fence.uid)
    for folder in spec.mounts:
        open_to_read(folder)
    return fence_of(spec, fence, program, arguments, os.environ)


def fence_of(
    spec: BoxSpec, fence: BoxFence, program: Sequence[str], arguments: Sequence[str], environ: Mapping[str, str]
) -> FenceSpec:
    """Return the fence of a box, whose folders exist."""
    environment = fenced_variables(environ, {**log_place(spec, fence.home), **spec.environment}, str(fence.home))
    return FenceSpec(
        command=[*absolute_command(program), *arguments],
        environment=environment,
        folder=str(own_folder(spec)),
        readable=[
            *program_paths(program, environment.get("PYTHONPATH", "")),
            *map(str, spec.mounts),
            # The folders, because a restarted listener creates the socket again.
            *(str(path.parent) for path in spec.sockets),
        ],
        writable=[str(path) for path in (own_folder(spec), fence.home, *spec.outputs)],
        hidden=[str(home_folder())],
        files={str(key_path(fence.home)): derive_key(fence.owner).hex()},
        limits=_limits_of(spec, fence),
        uid=fence.uid,
        cores=spec.limits.cores,
        parent=os.getpid() if spec.ends_with_parent else None,
        held=spec.descriptors,
        address=None if spec.part is None else part_address(spec.part),
        ports=LOCAL_PORTS,
    )


def log_place(spec: BoxSpec, home: Path) -> dict[str, str]:
    """Return the variable for the place of ``sn.log``, if its programs reach a node.

    Without it the log would be next to the node's socket, where boxes cannot write.
    """
    return {SND_STATE.variable: str(home)} if spec.sockets else {}


def fenced_limits(spec: BoxSpec, fence: BoxFence) -> dict[str, str]:
    """Describe which requested limits, and which of the fence's own, are applied."""
    limits = _limits_of(spec, fence)
    outcomes = {"fence": f"applied: {fence.way}" + (f", user {fence.uid}" if fence.uid is not None else "")}
    if spec.limits.cores is not None:
        outcomes["cores"] = f"applied: affinity to {', '.join(map(str, spec.limits.cores))}"
    if limits.memory_bytes is not None:
        outcomes["memory"] = (
            f"applied: {limits.memory_bytes} bytes in total, checked about every second, and for each process"
        )
    if limits.processes is not None:
        outcomes["pids"] = f"applied: {limits.processes} processes and threads of its user (RLIMIT_NPROC)"
    if limits.disk_bytes is not None:
        outcomes["disk"] = f"applied: {limits.disk_bytes} bytes in its folders, checked about every second"
    return outcomes


class FencedWires(Closable):
    """The sockets of a box for this process: those that existed when it became ready."""

    def __init__(self, folder: Path, uid: int | None) -> None:
        """Open the sockets. Raises: Unavailable: the REST socket's path is not a socket of the box."""
        path = folder / REST_SOCKET
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            found = os.fstat(self._descriptor)
        except OSError as cause:
            raise Unavailable(f"a box reports ready, but there is no socket {path}", end=str(BoxEnd.EXITED)) from cause
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != (os.getuid() if uid is None else uid):
            self.close()
            raise Unavailable(f"a box reports ready, but {path} is not its own socket", end=str(BoxEnd.EXITED))
        #: For clients in this process.
        self.addresses = {
            "rest": rest_address(Path(f"/proc/self/fd/{self._descriptor}")),
            "grpc": f"unix:{folder / GRPC_SOCKET}",
        }

    def close(self) -> None:
        """Close the folder. Calling again does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def end_fenced(process: BoxProcess) -> None:
    """End everything in a fence at once. Returns when all processes are gone, if the launcher still answers."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGQUIT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)


def give_folder(folder: Path, uid: int | None) -> None:
    """Create a private folder, and give it and its content to the box's user. Links are not followed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if uid is None or folder.stat().st_uid == uid:
        return
    for path in _all_of(folder):
        os.lchown(path, uid, uid)


def make_given_folder(folder: Path, uid: int | None) -> None:
    """Create a new folder for a box's user, safely even if that user changes its neighbours meanwhile.

    Raises:
        FileExistsError: the path exists.
    """
    folder.mkdir(mode=0o700)
    if uid is None:
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid == os.getuid():  # otherwise the user has replaced it and owns it
            os.fchown(descriptor, uid, uid)
    finally:
        os.close(descriptor)


def open_to_read(folder: Path) -> None:
    """Let other users read a folder's files; only users who can enter its parents gain access."""
    for path in _all_of(folder):
        mode = stat.S_IMODE(path.lstat().st_mode)
        wanted = mode | (0o555 if path.is_dir() else 0o444)
        if mode != wanted and not path.is_symlink():
            path.chmod(wanted)


def _all_of(folder: Path) -> Iterable[Path]:
    yield folder
    if folder.is_dir() and not folder.is_symlink():
        for parent, folders, files in os.walk(folder):
            yield from (Path(parent, name) for name in (*folders, *files))


def _limits_of(spec: BoxSpec, fence: BoxFence) -> FenceLimits:
    limits = fence.limits
    if spec.limits.memory_bytes is not None:
        limits = replace(limits, memory_bytes=spec.limits.memory_bytes)
    if spec.limits.pids is not None:
        limits = replace(limits, processes=spec.limits.pids)
    if spec.limits.disk_bytes is not None:
        limits = replace(limits, disk_bytes=spec.limits.disk_bytes)
    if spec.part is not None and limits.open_files is not None:
        limits = replace(limits, open_files=limits.open_files + MAX_PARTS * (len(PORTS) + 1))
    return limits
