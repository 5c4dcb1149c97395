"""``import sambaflow`` is quick: what is heavy is imported when it is used."""

import subprocess
import sys

from support import shows

pytestmark = shows("surface")

HEAVY = (
    "torch._inductor", "torch._dynamo", "torch._functorch", "sympy", "fastapi", "pydantic", "celery", "sqlalchemy",
    "grpc", "rdukit_compiler.pipeline", "rdukit_compiler.capture.from_fx", "rdukit_compiler.passes.differentiate",
    "rdukit_runtime.application", "rdukit_platform", "rdukit_modelbox",
)  # fmt: skip

SCRIPT = """
import sys, torch
before = set(sys.modules)
import sambaflow
import sambaflow.samba.utils.argparser
added = set(sys.modules) - before
print("\\n".join(sorted(added)))
"""


def test_importing_sambaflow_imports_nothing_heavy() -> None:
    made = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=120)
    added = made.stdout.split()
    assert "sambaflow.samba.session" in added
    heavy = [name for name in added if any(name == h or name.startswith(h + ".") for h in HEAVY)]
    assert heavy == []
    assert len(added) < 120


def test_the_version_is_one_that_programs_accept() -> None:
    import sambaflow

    assert tuple(map(int, sambaflow.__version__.split(".")[:2])) >= (1, 23)
    assert not sambaflow.is_demo
