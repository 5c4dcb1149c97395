"""How a fence ends: as its program did, with whoever is killed, and with a reason where it cannot be made."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rdukit.fence.probe import what_holds
from rdukit.fence.spec import NOT_FENCED
from support import shows, wait_until
from support.fences import START_S, Run, listed_processes, start

pytestmark = [
    shows("security", "job-boxes"),
    shows("security", "job-boxes"),
    pytest.mark.skipif(not what_holds().holds, reason=f"no fence holds here: {what_holds().why}"),
]


def test_it_ends_as_the_program_did(run: Run) -> None:
    assert run("os._exit(7)").status == 7
    assert run("os.kill(os.getpid(), signal.SIGSEGV)").status == -signal.SIGSEGV
    assert run("os.kill(os.getpid(), signal.SIGKILL)").status == -signal.SIGKILL


def test_what_its_folder_lacks_is_said_with_the_part(run: Run) -> None:
    fenced = run("", sockets=["/no/such.sock"])
    assert fenced.status == NOT_FENCED
    assert fenced.text.startswith("fence: root: ") and "/no/such.sock" in fenced.text


def test_the_whole_root_folder_is_given_to_nobody(run: Run) -> None:
    for more in ({"hidden": ["/"]}, {"more": ["/"]}):
        fenced = run("print(json.dumps('ran'))", **more)
        assert fenced.status == NOT_FENCED and "the root folder itself" in fenced.text


@pytest.mark.parametrize("whose", ["launcher", "first", "parent"])
def test_whoever_is_killed_takes_all_that_is_inside_along(whose: str, folder: Path) -> None:
    way = what_holds().way
    assert way is not None
    work = folder / "work"
    mark = f"fence-{os.getpid()}-{whose}"
    code = "os.fork(); os.setsid() if os.getpid() % 2 else None; open(sys.argv[1] + '/up', 'w'); time.sleep(600)"
    parent = os.fork()
    if parent == 0:
        process, _ = start(way, work, code, mark)
        (folder / "pid").write_text(str(process.pid))
        while True:
            time.sleep(1)
    wait_until((work / "up").exists)
    launcher = int((folder / "pid").read_text())
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    victim = {"launcher": launcher, "first": int(children[0]), "parent": parent}[whose]
    os.kill(victim, signal.SIGKILL)

    def is_gone() -> bool:
        return not any(mark in line and not line.startswith("Z") for line in listed_processes().splitlines())

    wait_until(is_gone)
    if whose != "parent":
        os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)


def test_sigterm_reaches_the_program(folder: Path) -> None:
    way = what_holds().way
    assert way is not None
    work = folder / "work"
    code = """
signal.signal(signal.SIGTERM, lambda *_: os._exit(9))
open(sys.argv[1] + "/up", "w")
while True: time.sleep(1)
"""
    process, _ = start(way, work, code)
    wait_until((work / "up").exists)
    process.terminate()
    assert process.wait(START_S) == 9


def test_a_user_without_rights_has_a_fence_too_or_is_told_why_not() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    python = Path("/usr/bin/python3")
    core = Path(__file__).parents[2] / "core"
    code = f"import sys; sys.path.insert(0, {str(core)!r})\nfrom rdukit.fence.probe import what_holds\n"
    code += "found = what_holds(); print(found.way, found.why)"
    words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", str(python), "-c", code]
    try:
        ran = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60, cwd="/")
    except FileNotFoundError as error:
        pytest.skip(f"{error.filename} is not installed")
    if ran.returncode:
        pytest.skip(f"{python} of another user cannot run our code: {ran.stderr.strip()[-200:]}")
    way, _, why = ran.stdout.strip().partition(" ")
    assert way == "user" or why, ran.stdout
