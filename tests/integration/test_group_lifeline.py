"""A process that ends with its parent takes along what it started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import shows

pytestmark = shows("operations")

CHILD = """
import os, subprocess, sys
from rdukit.system.process import end_group_with_parent
end_group_with_parent(int(sys.argv[1]))
subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, close_fds=False)
os.write(1, b"ready")
os.close(1)
while True: pass
"""
#: Starts the child from a thread that ends, as compiles do, and waits.
PARENT = f"""
import os, subprocess, sys, threading
child = {CHILD!r}
def start():
    subprocess.Popen([sys.executable, "-c", child, str(os.getpid())], process_group=0, pass_fds=(int(sys.argv[1]),))
thread = threading.Thread(target=start); thread.start(); thread.join()
sys.stdin.read()
"""


def test_a_killed_parent_ends_the_whole_group_of_its_child(tmp_path: Path) -> None:
    life, held = os.pipe()
    os.set_inheritable(held, True)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(held)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(held,)
    )
    os.close(held)
    assert parent.stdout is not None and parent.stdout.read(5) == b"ready"
    os.set_blocking(life, False)
    with pytest.raises(BlockingIOError):  # somebody still holds it
        os.read(life, 1)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    os.set_blocking(life, True)
    assert os.read(life, 1) == b"", "child and grandchild are gone"
    os.close(life)
