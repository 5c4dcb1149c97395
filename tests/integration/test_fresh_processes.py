"""What a new process imports and what it computes: the state of another one changes neither."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from support import shows

pytestmark = shows("project", "observability", "images")

TREE = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RDUKIT_NODE", "RDUKIT_LEASE", "RDUKIT_SND_SOCKET", "RDUKIT_PLATFORM", "SF_RNT_TILE_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))


def test_nobody_who_wants_no_spans_imports_opentelemetry_or_makes_an_id() -> None:
    program = (
        "import sys\n"
        "from rdukit.telemetry.spans import configure_telemetry, current_context, span\n"
        "configure_telemetry('gateway')\n"
        "with span('x') as told:\n"
        "    assert current_context() is None and told.end_ns == 0\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_opening_a_lease_imports_no_torch() -> None:
    program = (
        "import sys; from rdukit_node.private_node import open_lease; "
        "open_lease('app', arch='sn10', tiles=1, memory_bytes=0).release(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_cutting_needs_no_torch() -> None:
    program = (
        "import sys\nfrom rdukit_compiler.passes.cut_sections import cut_sections\n"
        "from rdukit_compiler.rules import load_default_rules\nload_default_rules()\nsys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_commands_start_without_what_only_others_need() -> None:
    unneeded = {
        "rdukit.cli": "yaml rich httpx",
        "rdukit_node.cli.node": "rdukit_node.daemon.run rdukit_node.install.install yaml rich sqlite3",
        "rdukit_node.cli.snfadm": "importlib.metadata yaml rich sqlite3",
        "rdukit_platform.cli.job": "yaml httpx",
        "rdukit_platform.client.http": "yaml asyncio rdukit_platform.client.asynchronous",
    }
    for module, names in unneeded.items():
        program = f"import sys; import {module}; print(*(name for name in {names.split()} if name in sys.modules))"
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert ran.stdout.split() == [], module


def test_the_standard_module_platform_is_never_hidden() -> None:
    assert platform.system() == "Linux"
    program = "import os, platform; print(os.path.dirname(platform.__file__) == os.path.dirname(os.__file__))"
    for folder in (TREE, TREE / "tests"):
        run = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
        assert run.stdout.strip() == "True", f"platform is hidden when Python starts in {folder}"


def test_bytecode_is_the_same_whatever_the_process_hashes() -> None:
    source = b"def ask(word):\n    return word in {'yes', 'no', 'maybe'}, 1.5, 'ask'\n"
    program = (
        "from rdukit_modelbox.image.bytecode import compile_source; import hashlib;"
        f"print(hashlib.sha256(compile_source({source!r}, '/opt/asked.py')).hexdigest())"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(made) == 1
