"""A rank that ends leaves no thread of the process group behind: one that still runs at the end aborts the process."""

import json
import subprocess
import sys

import pytest

from support import shows

pytestmark = [shows("surface", "node"), pytest.mark.long]

#: Traces while the group is up, which makes torch import what refers to groups, then leaves as the end of a rank does.
PROGRAM = """
import json
from pathlib import Path
import torch
import torch.distributed as dist
from torch.fx.experimental.proxy_tensor import make_fx
from rdukit_runtime import process_group

def threads():
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return sorted(name for name in names if "gloo" in name)

process_group.join_process_group()
make_fx(lambda x: x * 2, tracing_mode="fake")(torch.ones(3))
dist.all_reduce(torch.ones(4))
during = threads()
process_group.leave_process_group()
print(json.dumps({"during": during, "after": threads()}))
"""


def test_a_trace_while_ranks_are_joined_does_not_keep_the_group_alive() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["during"], "the group has threads of its own; if torch no longer names them so, look again"
    assert found["after"] == []
