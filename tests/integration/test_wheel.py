"""The wheel runs without the checkout: built, installed next to the dependencies, used from another folder."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from support import shows

pytestmark = shows("box", "zoo", "pef", "logreg", "project")

TREE = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")

Run = Callable[..., str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a program of the installed wheel in an empty folder; returns its output."""
    folder = tmp_path_factory.mktemp("wheel")
    if not UV.exists():
        pytest.skip("uv, which builds the wheel, is not installed: make setup")
    built = subprocess.run(
        [UV, "build", "--wheel", "--out-dir", folder, TREE], capture_output=True, text=True, check=False
    )
    if built.returncode and "hatchling" in built.stderr:
        pytest.skip(f"hatchling, which builds the wheel, cannot be had: {built.stderr[-300:]}")
    assert built.returncode == 0, built.stderr
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    packages = next((folder / "venv" / "lib").glob("python3*/site-packages"))
    # A folder that a .pth file names is searched, but its own .pth files, such as the checkout's, are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    python = folder / "venv" / "bin" / "python"
    install = [UV, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", python, *folder.glob("*.whl")]
    subprocess.run(install, check=True)
    (folder / "work").mkdir()

    def runs(program: str, *words: str) -> str:
        done = subprocess.run(
            [folder / "venv" / "bin" / program, *words], cwd=folder / "work", capture_output=True, text=True,
            check=False, env={**os.environ, "RDUKIT_HOME": str(folder / "home")}, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return runs


def test_nothing_is_imported_from_the_checkout(run: Run) -> None:
    packages = "rdukit, sambaflow, rdukit_compiler, rdukit_node, rdukit_runtime, rdukit_modelbox, rdukit_platform"
    shown = run("python", "-c", f"import {packages}, rdukit_zoo; print([m.__file__ for m in ({packages}, rdukit_zoo)])")
    assert str(TREE) not in shown and shown.count("site-packages") == 8


@pytest.mark.long
def test_each_command_group_is_there(run: Run) -> None:
    listed = run("rdukit", "--help").partition("Options:")[2]
    for group in ("box", "job", "node", "pef", "status", "zoo"):
        assert f"  {group} " in listed
        assert run("rdukit", group, "--help")
    assert "logreg" in run("rdukit", "box", "list")
    assert "python -m rdukit_zoo.logreg" in run("rdukit", "zoo", "show", "logreg")


@pytest.mark.long
def test_a_small_model_compiles_and_trains(run: Run) -> None:
    model = ("-m", "rdukit_zoo.logreg")
    run("python", *model, "compile", "--o0", "--pef-name", "small", "-b", "32")
    told = run("python", *model, "run", "--pef", "out/small/small.pef", "-b", "32", "--num-epochs", "1")
    assert "Test accuracy on the device" in told
    assert "small" in run("rdukit", "pef", "show", "out/small/small.pef")
