"""Machines of a test: namespaces of network, processes and host name on this one, joined by a switch.

A machine has an address of its own, sees no process of the others, and shares the file system with them. Killing
its first process kills all of its processes, as a machine does that goes down.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

#: Interfaces of a machine: one that leads to the others, and one that leads nowhere.
LINK, NOWHERE = "rdk0", "rdk1"
#: Seconds that processes of a program may need to end after it.
_GRACE_S: Final = 10
#: First process of a machine. Status 99: processes are left after the program, and the file $1 names them.
_FIRST: Final = f"""
left=$1; hostname "$2"; mount --bind "$3" /etc/hosts; shift 3
"$@"
status=$?
tries={_GRACE_S * 10}
while kill -0 -1 2>/dev/null; do
    if [ $tries = 0 ]; then
        cat /proc/[2-9]*/cmdline /proc/1[0-9]*/cmdline > "$left" 2>/dev/null
        exit 99
    fi
    tries=$((tries - 1)); sleep 0.1
done
exit $status
"""


class MachineProgram:
    """A program on a machine."""

    def __init__(self, process: "subprocess.Popen[bytes]", told: Path) -> None:
        self.told, self._process = told, process
        self.poll = process.poll

    def finish(self, timeout_s: float = 300.0) -> int:
        """Return its exit status when it has ended, and no process of it is left.

        Raises:
            subprocess.TimeoutExpired: it runs longer.
        """
        status = self._process.wait(timeout_s)
        assert status != 99, f"processes are left:\n{self.told.with_suffix('.left').read_text()}"
        return status

    def kill(self) -> None:
        """Kill all of its processes at once."""
        self._process.kill()
        self._process.wait(60)

    def text(self) -> str:
        """Return what it has written."""
        return self.told.read_text(errors="replace")


class SeparateMachine:
    """A machine: its number from 0, its address, and a home folder of its own."""

    def __init__(self, number: int, namespace: str, address: str, folder: Path) -> None:
        self.number, self.address, self.name = number, address, f"machine{number}"
        self.home = folder / f"{self.name}-home"
        self.home.mkdir(mode=0o700)
        self.hosts = folder / f"{self.name}-hosts"
        #: File by which a process of root joins this machine's network.
        self.network = f"/run/netns/{namespace}"
        self._namespace, self._folder = namespace, folder
        self._programs: list[MachineProgram] = []

    def start(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> MachineProgram:
        """Start a program; ``environment``: further variables."""
        told = self._folder / f"{self.name}-{len(self._programs)}.txt"
        command = [
            "ip", "netns", "exec", self._namespace, "unshare", "--uts", "--pid", "--fork", "--kill-child",
            "--mount-proc", "sh", "-c", _FIRST, "sh", str(told.with_suffix(".left")), self.name,
            str(self.hosts), *words,
        ]  # fmt: skip
        variables = {**os.environ, "RDUKIT_HOME": str(self.home), "OMP_NUM_THREADS": "1", **(environment or {})}
        with told.open("wb") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=variables)
        program = MachineProgram(process, told)
        self._programs.append(program)
        return program

    def cut(self) -> None:
        """Set the link to the others down."""
        self.ip("link", "set", LINK, "down")

    def ip(self, *words: str) -> str:
        """Run ``ip`` on this machine. Returns what it prints."""
        return ip("-n", self._namespace, *words)

    def end(self) -> None:
        """Kill what runs."""
        for program in self._programs:
            if program.poll() is None:
                program.kill()


def ip(*words: str) -> str:
    """Run ``ip``. Returns what it prints."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout


def why_no_machines() -> str | None:
    """Return why this user cannot make machines; None: they can."""
    if missing := [name for name in ("ip", "unshare") if shutil.which(name) is None]:
        return f"no {', '.join(missing)} on this machine: apt-get install iproute2 util-linux"
    trial = f"rdk-trial-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", trial], capture_output=True, text=True, check=False, timeout=60)
    if made.returncode:
        return f"namespaces of networks need CAP_NET_ADMIN: {made.stderr.strip()}"
    ip("netns", "delete", trial)
    return None


@contextmanager
def machines(count: int, folder: Path) -> Iterator[list[SeparateMachine]]:
    """Yield machines that reach each other; the test skips where this user may not make them.

    Nothing of them is left afterwards. They resolve each other's names, as with a common ``/etc/hosts``, and their own
    to 127.0.1.1, as Debian installs it.
    """
    if (why := why_no_machines()) is not None:
        if os.environ.get("RDUKIT_REQUIRE_NETNS"):
            raise AssertionError(why)
        pytest.skip(why)
    prefix = f"rdk-{os.getpid()}"
    switch = f"{prefix}-switch"
    with ExitStack() as stack:

        def add(namespace: str) -> None:
            ip("netns", "add", namespace)
            stack.callback(ip, "netns", "delete", namespace)
            ip("-n", namespace, "link", "set", "lo", "up")

        add(switch)
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        addresses = [f"10.91.0.{number + 1}" for number in range(count)]
        made = []
        for number, address in enumerate(addresses):
            namespace = f"{prefix}-{number}"
            add(namespace)
            for name, of, net in ((LINK, address, 24), (NOWHERE, f"10.92.{number}.1", 24)):
                port = f"port{number}-{name}"
                ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", name, "netns", namespace)
                ip("-n", switch, "link", "set", port, "up")
                ip("-n", namespace, "address", "add", f"{of}/{net}", "dev", name)
                ip("-n", namespace, "link", "set", name, "up")
            ip("-n", switch, "link", "set", f"port{number}-{LINK}", "master", "bridge")
            machine = SeparateMachine(number, namespace, address, folder)
            stack.callback(machine.end)
            made.append(machine)
        for machine in made:
            names = [f"{'127.0.1.1' if each is machine else each.address} {each.name}\n" for each in made]
            machine.hosts.write_text("127.0.0.1 localhost\n" + "".join(names))
        yield made
