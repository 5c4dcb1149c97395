"""The node daemon and its tools run with the packages that their image has, and no others."""

import re
import subprocess
import sys
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from support import shows
from support.node.daemons import environment, running_daemon

pytestmark = shows("node", "containers", "snml")

TREE = Path(__file__).parents[2]
SCRIPT = """
import sys
from importlib.abc import MetaPathFinder

foreign = set(sys.argv.pop(1).split(","))

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in foreign and path is None:
            raise ModuleNotFoundError(f"No module named {name!r} in the image of the node", name=name)
        return None

sys.meta_path.insert(0, Absent())
from rdukit.cli import main
main()
"""


def words_of_the_image() -> list[str]:
    found = re.search(r"--only /src/pyproject\.toml([^>]*)>", (TREE / "runtime/Dockerfile").read_text())
    assert found is not None
    return found[1].replace("\\", " ").lower().split()


def in_the_image() -> set[str]:
    """The distributions that pip brings into the image, with what they need."""
    waiting = [
        requirement
        for requirement in distribution("rdukit").requires or []
        if "extra ==" not in requirement and Requirement(requirement).name.lower() in words_of_the_image()
    ]
    found: set[str] = set()
    while waiting:
        requirement = Requirement(waiting.pop())
        name = requirement.name.lower().replace("_", "-")
        if name in found or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        waiting += distribution(name).requires or []
    return found


def foreign_modules() -> str:
    own, there = {"rdukit"}, in_the_image()
    return ",".join(
        module
        for module, owners in packages_distributions().items()
        if not {owner.lower().replace("_", "-") for owner in owners} & (there | own)
    )


def run(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, foreign_modules(), *words]
    return subprocess.run(
        command, env=environment(home, RDUKIT_NODE="daemon"), capture_output=True, text=True, timeout=60, check=False
    )


def test_torch_and_the_platforms_packages_are_not_in_the_nodes_image() -> None:
    assert {"torch", "fastapi", "sqlalchemy", "numpy"} <= set(foreign_modules().split(","))
    assert not {"grpc", "click", "yaml", "rich", "google"} & set(foreign_modules().split(","))


@pytest.mark.parametrize("words", [("node", "status"), ("node", "events"), ("node", "--help")], ids=" ".join)
def test_a_command_of_the_node_runs_with_its_images_packages(words: tuple[str, ...]) -> None:
    with running_daemon() as daemon:
        done = run(daemon.home, *words)
    assert done.returncode == 0, done.stderr


def test_the_daemon_starts_and_serves_snml_with_its_images_packages(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, foreign_modules(), "node", "start", "--platform", "TEST-1"]
    daemon = subprocess.Popen(
        [*command, "--snml-port", "0", "--socket", str(tmp_path / "s"), "--state", str(tmp_path / "state")],
        env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert daemon.stdout is not None
    line = daemon.stdout.readline()
    daemon.terminate()
    _, words = daemon.communicate(timeout=60)
    assert line.startswith("snd ready"), words
    assert daemon.returncode == 0, words
