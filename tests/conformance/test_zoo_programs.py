"""The zoo's digit programs as a user runs them: from a shell, each command in a process of its own."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import shows
from support.forked import run_python

pytestmark = shows("zoo", "logreg", "ffn", "portable")


@dataclass(frozen=True, slots=True)
class Ran:
    status: int
    out: str
    err: str

    @property
    def accuracies(self) -> list[float]:
        """On the device and on the host."""
        return [float(found) for found in re.findall(r"Test accuracy on the \w+: +([\d.]+)", self.out)]

    @property
    def losses(self) -> list[str]:
        return re.findall(r"Epoch \[(\d+/\d+)\], Loss: ([\d.]+)", self.out)


def shell(home: Path, folder: Path, module: str, *arguments: str, path: str | None = None) -> Ran:
    """``python -m rdukit_zoo.<module> <arguments>`` in ``folder``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RDUKIT_")}
    settings = {"RDUKIT_HOME": str(home), "RDUKIT_KERNELS": "portable", "RDUKIT_NODE": "private"}
    environment = {**kept, **settings, "OMP_NUM_THREADS": "1", **({} if path is None else {"PATH": path})}
    made = run_python(["-m", f"rdukit_zoo.{module}", *arguments], environment, cwd=folder, kind="sambaflow")
    return Ran(made.returncode, made.stdout, made.stderr)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def pefs(folder: Path, rdukit_home: Path) -> dict[str, str]:
    """Compiled once for all tests of this file."""
    for module in ("logreg", "ffn"):
        made = shell(rdukit_home, folder, module, "compile", "-b", "32", "--pef-name", module)
        assert made.status == 0, made.err
        assert f"PEF file out/{module}/{module}.pef created" in made.out
    return {module: f"out/{module}/{module}.pef" for module in ("logreg", "ffn")}


@pytest.fixture(scope="module")
def trained(pefs: dict[str, str], folder: Path, rdukit_home: Path) -> dict[str, Ran]:
    """Each program's training, of two and five epochs, without a compiler on the path."""
    made = {}
    for module, epochs in (("logreg", 2), ("ffn", 5)):
        made[module] = shell(
            rdukit_home, folder, module, "run", "-b", "32", "--pef", pefs[module], "--num-epochs", str(epochs),
            "--checkpoint", f"{module}.pt", path="/nonexistent",
        )  # fmt: skip
        assert made[module].status == 0, made[module].err
    return made


@pytest.mark.parametrize(("module", "least"), [("logreg", 0.90), ("ffn", 0.94)])
def test_a_program_trains_on_real_digits_without_a_compiler_on_the_path(
    module: str, least: float, trained: dict[str, Ran]
) -> None:
    made = trained[module]
    device, host = made.accuracies
    assert device >= least
    assert host == pytest.approx(device, abs=0.01)
    assert "Emulated RDU time (projected):" in made.out


def test_a_checkpoint_serves_inference_with_the_training_pef_and_training_goes_on_from_it(
    pefs: dict[str, str], trained: dict[str, Ran], folder: Path, rdukit_home: Path
) -> None:
    common = ("run", "-b", "32", "--pef", pefs["logreg"])
    whole = trained["logreg"]
    first = shell(rdukit_home, folder, "logreg", *common, "--num-epochs", "1", "--checkpoint", "one.pt")
    assert first.status == 0, first.err
    inference = shell(rdukit_home, folder, "logreg", *common, "--inference", "--resume", "one.pt")
    assert inference.status == 0, inference.err
    assert inference.accuracies == first.accuracies
    assert not inference.losses
    resumed = shell(rdukit_home, folder, "logreg", *common, "--num-epochs", "2", "--resume", "one.pt")
    assert resumed.status == 0, resumed.err
    assert first.losses[:1] + resumed.losses == [("1/1", whole.losses[0][1]), *whole.losses[1:]]
    assert resumed.accuracies == whole.accuracies


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["run", "--pef", "missing.pef"], 3, "missing.pef"),
        (["run", "-b", "16", "--pef", "{pef}"], 4, r"\[16, 784\].*compiled for.*\[32, 784\]"),
        (["run", "-b", "32", "--pef", "{other}"], 4, "compiled from resffnlogreg, not from logreg"),
        (["run", "-b", "32", "--pef", "{pef}", "--resume", "gone.pt"], 3, "gone.pt"),
        (["run", "--batch", "3"], 2, "usage"),
        (["compile", "--optimization-rules", "absent.yaml", "-o1"], None, "absent.yaml"),
    ],
)  # fmt: skip
def test_a_mistake_ends_with_its_status_and_a_message_without_a_traceback(
    arguments: list[str], status: int | None, text: str, pefs: dict[str, str], folder: Path, rdukit_home: Path
) -> None:
    filled = [a.format(pef=pefs["logreg"], other=pefs["ffn"]) for a in arguments]
    made = shell(rdukit_home, folder, "logreg", *filled)
    assert made.status == status if status is not None else made.status != 0
    assert re.search(text, made.err, re.DOTALL), made.err
    assert "Traceback" not in made.err
