"""Put up a fence and run a program in it: ``python -I -S launcher.py --spec-fd N``.

The launcher reads the specification, JSON from ``spec.to_json``, from descriptor N. There are three processes:

- the launcher stays outside and watches;
- the first process of the fence's process namespace puts up the rest, and then only waits;
- the program is its child.

When one of them or the launcher's parent ends, all processes of the program end. The launcher ends like the program,
with its status or by its signal. It forwards SIGTERM to the program; SIGQUIT ends the program at once.

A program runs fenced or not at all: if a part cannot be put up, the launcher ends with the status ``not_fenced`` and
the last line ``fence: PART: why``. It imports little, because each box waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from rdukit.fence import kernel, watch  # noqa: E402 it is found on the path from here on

#: Path of the new root; the outer content of this path stays reachable through the old root.
_BASE = "/tmp"
#: Files of ``/proc`` that belong to the machine, not to a process. Their owner could write them without capabilities.
_MACHINE = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
#: Priority for the OOM killer, from -1000 (never) to 1000 (first).
_OUT_OF_MEMORY_FIRST = 500
_NOTHING = ("", "")


class PartMissing(Exception):
    """A part of the fence that cannot be put up, and why."""

    def __init__(self, part: str, why: object) -> None:
        super().__init__(f"{part}: {why}")


class _Relay:
    """Forwards SIGTERM to a child, including a signal that arrived before the child existed."""

    def __init__(self) -> None:
        self._child = 0
        self._pending = 0
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, self._pass_on)

    def begin(self, child: int) -> None:
        """Forward signals to ``child`` from now on."""
        self._child = child
        if self._pending:
            self._pass_on(self._pending, None)

    def forget(self) -> None:
        """Stop forwarding: the state after a fork."""
        self._child = 0

    def _pass_on(self, number: int, _: object) -> None:
        if not self._child:
            self._pending = number
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGKILL if number == signal.SIGQUIT else signal.SIGTERM)


def main() -> int:
    """Run one program; return its exit status, or end by its signal."""
    descriptor = int(sys.argv[sys.argv.index("--spec-fd") + 1])
    with open(descriptor, encoding="utf-8") as stream:
        return launch(json.load(stream), _execute)


def launch(spec: dict[str, Any], become: Callable[[dict[str, Any]], None]) -> int:
    """Fence a program and wait for its end; return its exit status, or end by its signal. The caller must have one
    thread.

    ``become`` is called in the program's process, in its session and folder, and never returns.
    """
    try:
        return _launch(spec, become)
    except PartMissing as missing:
        print(f"fence: {missing}", file=sys.stderr, flush=True)
        return int(spec["not_fenced"])


def _launch(spec: dict[str, Any], become: Callable[[dict[str, Any]], None]) -> int:
    parent = _open_parent(spec["parent"])
    if spec["cores"] is not None:
        try:
            os.sched_setaffinity(0, spec["cores"])
        except (OSError, ValueError) as error:
            raise PartMissing("limits", f"cores {spec['cores']}: {error}") from error
    relay = _Relay()
    # When memory runs out, the system ends the fenced program first. A program cannot lower a number that root wrote.
    _write("/proc/self/oom_score_adj", str(_OUT_OF_MEMORY_FIRST))
    _leave_namespaces(spec)
    reader, writer = os.pipe()
    first = os.fork()
    if first == 0:
        os.close(reader)
        if parent is not None:
            os.close(parent)
        relay.forget()
        _be_first(spec, relay, writer, become)
    os.close(writer)
    relay.begin(first)
    words, (kind, excess) = _watch(spec, first, reader, parent)
    _, status = os.waitpid(first, 0)
    if excess:
        print(f"fence: {kind}: {excess}; the program was ended", file=sys.stderr, flush=True)
        return int(spec[f"{kind}_limit"])
    word, _, rest = words.partition(" ")
    if word == "missing":
        part, _, why = rest.partition(": ")
        raise PartMissing(part, why)
    # Without a message, the first process was killed, and the program with it.
    return _end_as(int(rest) if word == "status" else signal.SIGKILL if os.WIFSIGNALED(status) else status)


def _open_parent(parent: int | None) -> int | None:
    if parent is None:
        return None
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)
    if os.getppid() != parent:
        os._exit(1)
    return descriptor


def _leave_namespaces(spec: dict[str, Any]) -> None:
    flags = kernel.NEW_MOUNTS | kernel.NEW_PIDS | kernel.NEW_IPC | kernel.NEW_UTS
    if spec["has_own_network"]:
        flags |= kernel.NEW_NETWORK
    uid, gid = os.getuid(), os.getgid()
    try:
        if spec["way"] == "user":
            kernel.unshare(kernel.NEW_USER | flags)
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{uid} {uid} 1")
            _write("/proc/self/gid_map", f"{gid} {gid} 1")
        else:
            kernel.unshare(flags)
    except OSError as error:
        raise PartMissing("namespaces", f"the kernel refuses them to user {uid}: {error.strerror}") from error


def _watch(spec: dict[str, Any], first: int, reader: int, parent: int | None) -> tuple[str, tuple[str, str]]:
    """Wait for the program's end; return the first process's last line, and an exceeded limit's kind and
    description.
    """
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    if parent is not None:
        poll.register(parent, select.POLLIN)
    limits, words, next_disk_s = spec["limits"], b"", time.monotonic() + watch.WATCH_S
    while True:
        ready = [number for number, _ in poll.poll(watch.WATCH_S * 1000)]
        if parent in ready:
            os.kill(first, signal.SIGKILL)
            return "", _NOTHING
        if reader in ready:
            block = os.read(reader, 4096)
            words += block
            if not block:
                return words.decode(errors="replace").rpartition("\n")[2], _NOTHING
        if ready:
            continue
        kind, excess = "memory", watch.over_memory(limits["memory_bytes"])
        if not excess and (began := time.monotonic()) >= next_disk_s:
            said = os.fstat(1).st_blocks * 512  # its output is stored, too
            most = limits["disk_bytes"], limits["disk_files"]
            kind, excess = "disk", watch.over_disk(*most, spec["writable"], watch.processes(), said)
            next_disk_s = began + watch.pause_after(time.monotonic() - began)
        if excess:
            os.kill(first, signal.SIGKILL)
            return "", (kind, excess)


def _end_as(status: int) -> int:
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


# -- the first process inside ----------------------------------------------------------------------------------------


def _be_first(spec: dict[str, Any], relay: _Relay, writer: int, become: Callable[[dict[str, Any]], None]) -> None:
    """Put up the fence, start the program, wait for its end and report its status. Never returns."""
    try:
        _put_up(spec, writer)
        program = os.fork()
        if program == 0:
            _become(spec, become)
        relay.begin(program)
        while True:
            child, status = os.wait()
            if child == program:
                break
        os.write(writer, f"\nstatus {status}".encode())
    except BaseException as error:  # noqa: BLE001 the process's boundary
        os.write(writer, f"\nmissing {error if isinstance(error, PartMissing) else f'root: {error!r}'}".encode())
    os._exit(0)


def _put_up(spec: dict[str, Any], writer: int) -> None:
    for part, put_up in (
        ("network", _choose_ports), ("root", _make_root), ("network", _bring_up_network), ("limits", _limit),
        ("user", _switch_user), ("root", _write_files), ("capabilities", _drop), ("landlock", _lock_land),
        ("system-calls", _filter),
    ):  # fmt: skip
        try:
            put_up(spec)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise PartMissing(part, f"{where}{error.strerror}") from error
        except ValueError as error:
            raise PartMissing(part, error) from error
        if part == "capabilities":
            # The change of the user has reset this.
            kernel.signal_on_parent_death(signal.SIGKILL)
            poll = select.poll()
            poll.register(writer, select.POLLOUT)
            if any(events & select.POLLERR for _, events in poll.poll(0)):
                os._exit(1)  # the reader of the status has ended before


def _make_root(spec: dict[str, Any]) -> None:
    kernel.mount("", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    quiet = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("fence", _BASE, "tmpfs", quiet, "mode=0755,size=16m")
    os.mkdir(f"{_BASE}/old", 0o755)
    os.mkdir(f"{_BASE}/new", 0o755)
    kernel.pivot_root(_BASE, f"{_BASE}/old")
    os.chdir("/")
    kernel.mount("fence", "/new", "tmpfs", quiet, "mode=0755,size=16m")
    size = f"mode=1777,size={spec['limits']['temporary_bytes']}"
    for place in ("/tmp", "/dev/shm", "/etc", "/proc", "/run"):
        os.makedirs("/new" + place, 0o755)
    kernel.mount("tmp", "/new/tmp", "tmpfs", quiet, size)
    kernel.mount("shm", "/new/dev/shm", "tmpfs", quiet, size)
    _fill_etc(spec)
    kernel.mount("proc", "/new/proc", "proc", quiet | kernel.MS_NOEXEC)
    for name in _MACHINE:
        if os.path.exists(path := f"/new/proc/{name}"):
            kernel.mount(path, path, "", kernel.MS_BIND)
            kernel.set_mount_attributes(path, kernel.READ_ONLY | kernel.NO_SET_USER_ID | kernel.NO_DEVICES)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"/new/dev/{name}")
    for path in spec["devices"]:
        _bind(path, kernel.NO_SET_USER_ID | kernel.NO_EXECUTION)
    _bring_paths(spec)
    kernel.unmount("/old", kernel.MNT_DETACH)
    os.chdir("/new")
    kernel.pivot_root(".", ".")
    kernel.unmount(".", kernel.MNT_DETACH)
    os.chdir("/")
    kernel.mount("", "/", "", kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | quiet)


def _bring_paths(spec: dict[str, Any]) -> None:
    closed = kernel.NO_SET_USER_ID | kernel.NO_DEVICES
    wanted = dict.fromkeys(spec["hidden"], "hidden")
    wanted |= dict.fromkeys(spec["system"], "system")
    wanted |= dict.fromkeys(spec["readable"], "readable")
    wanted |= dict.fromkeys(spec["sockets"], "readable")
    wanted |= dict.fromkeys(spec["writable"], "writable")
    if "/" in wanted:
        raise ValueError("the root folder itself was named; name only the folders that are needed")
    # Mount inner paths after, and over, the paths that contain them.
    for path, kind in sorted(wanted.items(), key=lambda item: item[0].count("/")):
        if kind == "hidden":
            if os.path.isdir("/new" + path):
                kernel.mount("hidden", "/new" + path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0755,size=1m")
        elif kind == "system" and not os.path.lexists("/old" + path):
            continue
        elif kind == "system" and os.path.islink("/old" + path) and os.readlink("/old" + path)[:1] != "/":
            os.symlink(os.readlink("/old" + path), "/new" + path)
        else:
            _bind(path, closed if kind == "writable" else closed | kernel.READ_ONLY)


def _bind(path: str, attributes: int) -> None:
    """Mount the outer ``path`` at the same path inside, following links."""
    source, target = _resolve(path), "/new" + path
    os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
    if os.path.isdir(source):
        os.makedirs(target, 0o755, exist_ok=True)
    elif not os.path.lexists(target):
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    kernel.mount(source, target, "", kernel.MS_BIND | kernel.MS_REC)
    kernel.set_mount_attributes(target, attributes)


def _resolve(path: str) -> str:
    """Resolve ``path`` below the old root: an absolute link would otherwise lead to the new root."""
    done, waiting, links = "/old", [part for part in path.split("/") if part][::-1], 0
    while waiting:
        part = waiting.pop()
        if part == "..":
            done = os.path.dirname(done) if done != "/old" else done
            continue
        here = f"{done}/{part}"
        if not os.path.islink(here):
            done = here
            continue
        links += 1
        if links > 40:
            raise ValueError(f"{path}: too many links")
        text = os.readlink(here)
        if text.startswith("/"):
            done = "/old"
        waiting += [part for part in text.split("/") if part not in {"", "."}][::-1]
    return done


def _fill_etc(spec: dict[str, Any]) -> None:
    uid, gid = (os.getuid(), os.getgid()) if spec["uid"] is None else (spec["uid"], spec["uid"])
    name, host = spec["user_name"], spec["host_name"]
    texts = {
        "passwd": f"{name}:x:{uid}:{gid}:{name}:/tmp:/bin/sh\n",
        "group": f"{name}:x:{gid}:\n",
        "hosts": f"127.0.0.1 localhost {host} {os.uname().nodename}\n::1 localhost\n",
        "hostname": f"{host}\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "resolv.conf": "",
    }
    for file, text in texts.items():
        _write(f"/new/etc/{file}", text)


def _bring_up_network(spec: dict[str, Any]) -> None:
    # A failure is harmless: the name protects nothing, and filters of engines refuse to change it.
    with contextlib.suppress(OSError):
        kernel.set_host_name(spec["host_name"])
    if spec["has_own_network"]:
        kernel.bring_up("lo")
        if spec["address"] is not None:
            kernel.add_loopback_address(spec["alias"], spec["address"])


def _choose_ports(spec: dict[str, Any]) -> None:
    # This must come before the program's root, in which this path is not writable.
    if spec["has_own_network"] and spec["address"] is not None:
        first, last = spec["ports"]
        _write("/proc/sys/net/ipv4/ip_local_port_range", f"{first} {last}")


def _limit(spec: dict[str, Any]) -> None:
    limits = spec["limits"]
    wanted = (
        (resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]), (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
    )  # fmt: skip
    for kind, value in wanted:
        if value is None:
            continue
        hardest = resource.getrlimit(kind)[1]
        value = value if hardest == resource.RLIM_INFINITY else min(value, hardest)
        resource.setrlimit(kind, (value, value))


def _switch_user(spec: dict[str, Any]) -> None:
    if spec["way"] == "root":
        uid = os.getuid() if spec["uid"] is None else spec["uid"]
        kernel.drop_bounding_set()
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    else:
        kernel.drop_bounding_set()


def _write_files(spec: dict[str, Any]) -> None:
    os.umask(0o077)
    for path, text in spec["files"].items():
        folder, name = os.path.split(path)
        os.makedirs(folder, 0o700, exist_ok=True)
        # Other fences may write the same file at the same time, and in each this process has number 1.
        part = f"{folder}/.{name}.{os.urandom(4).hex()}.part"
        with open(part, "xb") as stream:
            stream.write(bytes.fromhex(text))
        os.replace(part, path)


def _drop(spec: dict[str, Any]) -> None:
    kernel.clear_capabilities()
    kernel.set_no_new_privileges()
    kernel.set_dumpable(False)


def _lock_land(spec: dict[str, Any]) -> None:
    try:
        abi = kernel.landlock_abi()
    except OSError:
        return
    if abi >= kernel.ABI_REFER:
        kernel.enter_landlock_fence(abi, [*spec["writable"], "/tmp", "/dev", "/proc"])


def _filter(spec: dict[str, Any]) -> None:
    kernel.filter_system_calls(bytes.fromhex(spec["system_calls"]))


def _become(spec: dict[str, Any], become: Callable[[dict[str, Any]], None]) -> None:
    """Execute the program. Never returns."""
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.chdir(spec["folder"])
        become(spec)
    except OSError as error:
        print(f"fence: {spec['command'][0]} cannot be run: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _execute(spec: dict[str, Any]) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.closerange(3, 1 << 20)
    os.execve(spec["command"][0], spec["command"], spec["environment"])


def _write(path: str, text: str) -> None:
    with open(path, "x" if path.startswith("/new") else "w", encoding="utf-8") as stream:
        stream.write(text)


if __name__ == "__main__":
    sys.exit(main())
