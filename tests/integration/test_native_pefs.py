"""A PEF with native libraries in other processes: without a compiler, beside another one, and where they do not fit.

One program is compiled once; all tests run that PEF. Cases about what is imported start their process anew, the others
fork it.
"""

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit.pef.file import LoadedPef, read_pef, write_pef
from rdukit.pef.model import Pef
from support import shows
from support.forked import run_python, run_rdukit_forked
from support.node.daemons import RunningDaemon, environment, running_daemon

pytestmark = [shows("native", "pef", "engine", "o3", "portable"), pytest.mark.long]

#: Trains three steps; prints losses, how many kernels are native, and what was imported that compiles. Torch itself
#: imports other parts of inductor with its fake tensors, which a trace needs.
PROGRAM = """
import json, sys
import torch
from torch import nn
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.utils.argparser import parse_app_args

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(7, 5), nn.Linear(5, 3)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x, y):
        out = self.second(self.first(x).tanh())
        return self.criterion(out, y), out

args = parse_app_args(sys.argv[1:])
utils.set_seed(1)
model = Small()
samba.from_torch_model_(model)
inputs = (samba.randn(3, 7, name="x"), samba.randint(3, (3,), name="y"))
optimizer = samba.optim.AdamW(model.parameters(), lr=0.1)
if args.command == "compile":
    samba.session.compile(model, inputs, optimizer, name="small", config_dict=vars(args))
    sys.exit()
outputs = utils.trace_graph(model, inputs, optimizer, pef=args.pef)
print(json.dumps(samba.session.report()["native_kernels"]), flush=True)
sys.stdin.readline()  # so that a test knows that two hold their leases at once
losses = [samba.to_torch(samba.session.run(inputs, outputs)[0]).float().item().hex() for _ in range(3)]
samba.session.to_cpu(model)
parameters = [float(p.double().sum()).hex() for p in map(samba.to_torch, model.state_dict().values())]
inductor = sorted({"torch._inductor.compile_fx", "torch._inductor.codecache"} & sys.modules.keys())
print(json.dumps({"losses": losses, "parameters": parameters, "inductor": inductor}))
"""


#: Runs the forward section with the runtime alone; prints how many kernels are native, and all of inductor.
ENGINE = """
import json, sys, torch
from rdukit_runtime.application import open_application

with open_application(sys.argv[1], "engine") as application:
    graph = application.program.find_graph(None)
    sections = application.program.choose_sections(graph, ["fwd"])
    application.run(None, sections, application.pef.hyperparameters)
    print(json.dumps([application.native_kernels, [m for m in sys.modules if m.startswith("torch._inductor")]]))
"""


class Site:
    """A node, the program and its PEF."""

    def __init__(self, daemon: RunningDaemon, folder: Path) -> None:
        self.daemon = daemon
        self.folder = folder
        self.script = folder / "small.py"
        self.script.write_text(PROGRAM)
        self.pef = folder / "out" / "small" / "small.pef"

    def variables(self, **more: str) -> dict[str, str]:
        return environment(
            self.daemon.home, **{"RDUKIT_NODE": "daemon", "RDUKIT_SND_SOCKET": str(self.daemon.socket), **more}
        )

    def words(self, pef: Path | None = None) -> list[str]:
        return [str(self.script), "run", "--pef", str(pef or self.pef)]

    def start_run(self, **variables: str) -> "subprocess.Popen[str]":
        """Start a new process, which runs once it has read a line."""
        return subprocess.Popen(
            [sys.executable, *self.words()], env=self.variables(**variables), cwd=self.folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, pef: Path | None = None, **variables: str) -> "Ran":
        """Run in a fork."""
        done = run_python(self.words(pef), self.variables(**variables), cwd=self.folder, kind="sambaflow")
        return read_run(done.returncode, done.stdout, done.stderr)

    def run_anew(self, **variables: str) -> "Ran":
        """Run in a new process."""
        process = self.start_run(**variables)
        out, err = process.communicate("\n", timeout=120)
        return read_run(process.returncode, out, err)


@dataclasses.dataclass(frozen=True)
class Ran:
    native_kernels: int
    losses: list[str]
    parameters: list[str]
    inductor: list[str]
    stderr: str


def read_run(status: int, out: str, err: str) -> Ran:
    assert status == 0, err
    native, results = out.splitlines()[-2:]
    return Ran(int(native), **json.loads(results), stderr=err)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if shutil.which(os.environ.get("CXX") or "g++") is None:
        pytest.skip("no C++ compiler")
    with running_daemon("TEST-1") as daemon:
        made = Site(daemon, tmp_path_factory.mktemp("native"))
        options = ("--pef-name", "small", "--o3", "--arch", "sn10", "--num-tiles", "1", "--log-level", "error")
        # One worker: torch's headers are read once. The ways of products are not the matter here, nor measured.
        how = {"RDUKIT_COMPILE_WORKERS": "1", "RDUKIT_COMPILE_ROUTES": "bf16=f32,f32=blas"}
        words = [str(made.script), "compile", *options]
        variables = made.variables(RDUKIT_KERNELS="native", **how)
        done = run_python(words, variables, cwd=made.folder, timeout_s=300, kind="sambaflow")
        assert done.returncode == 0, done.stderr
        yield made


@pytest.fixture(scope="module")
def expected(site: Site) -> Ran:
    """What the libraries give, which other runs are compared with."""
    ran = site.run()
    assert ran.native_kernels == len(read_pef(site.pef).natives) > 0
    assert "native kernels not used" not in ran.stderr
    return ran


def changed(loaded: LoadedPef, path: Path, pef: Pef, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The PEF with another index, signed by the installation in ``home``."""
    monkeypatch.setenv("RDUKIT_HOME", str(home))
    write_pef(path, pef, loaded.kernels, loaded.natives)
    return path


def assert_same_numbers(ran: Ran, expected: Ran) -> None:
    """In bf16 a GEMM that adds in another order flips a last bit now and then: 2^-8 of the value, three steps."""
    for ours, theirs in zip([*ran.losses, *ran.parameters], [*expected.losses, *expected.parameters], strict=True):
        assert float.fromhex(ours) == pytest.approx(float.fromhex(theirs), rel=2**-6, abs=2**-8)


@pytest.mark.long
def test_a_cached_native_pef_runs_without_a_compiler_and_without_inductor(
    site: Site, expected: Ran, tmp_path: Path
) -> None:
    ran = site.run_anew(PATH=str(tmp_path))
    assert ran.native_kernels == expected.native_kernels
    assert ran.inductor == []
    assert (ran.losses, ran.parameters) == (expected.losses, expected.parameters)


@pytest.mark.long
def test_the_runtime_alone_imports_nothing_of_inductor(site: Site, expected: Ran, tmp_path: Path) -> None:
    environ = environment(site.daemon.home, RDUKIT_NODE="private", PATH=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", ENGINE, str(site.pef)], env=environ, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [expected.native_kernels, []]


@pytest.mark.long
def test_nothing_is_run_from_a_folder_as_containers_have_mounts_that_forbid_it(site: Site, tmp_path: Path) -> None:
    """Docker mounts a ``--tmpfs`` without leave to execute; here the home is as strict. Mounts end with the program."""
    words = [
        sys.executable,
        str(site.script),
        "{}",
        "--pef-name",
        "small",
        "--o3",
        "--arch",
        "sn10",
        "--num-tiles",
        "1",
    ]
    script = f"""
        mount -t tmpfs -o noexec tmpfs {tmp_path} && mkdir {tmp_path}/tmp && cd {tmp_path} || exit 77
        {shlex.join(words).format("compile")} && {shlex.join(words[:2])} run --pef out/small/small.pef < /dev/null
    """
    if subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "t", tmp_path], check=False).returncode != 0:
        pytest.skip("mounting needs root")
    folders = {"RDUKIT_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}
    # The ways of products are measured: with libraries that were just built.
    how = {"RDUKIT_NODE": "private", "RDUKIT_KERNELS": "native", "RDUKIT_COMPILE_WORKERS": "1"}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], env=environment(site.daemon.home, **folders, **how),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-2]) > 0, done.stderr


def test_two_leases_at_once_on_one_node_give_equal_numbers(site: Site, expected: Ran) -> None:
    both = [site.start_run(), site.start_run()]
    try:
        for process in both:
            assert process.stdout is not None
            held = process.stdout.readline()
            while held and not held.strip().isdigit():
                held = process.stdout.readline()
            assert int(held) == expected.native_kernels
        for process in both:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = [json.loads(process.communicate(timeout=120)[0].splitlines()[-1]) for process in both]
    finally:
        for process in both:
            process.kill()
            process.communicate()
    for ran in said:
        assert (ran["losses"], ran["parameters"]) == (expected.losses, expected.parameters)


@pytest.mark.long
def test_an_installation_builds_libraries_of_its_own_for_a_pef_from_elsewhere(
    site: Site, expected: Ran, tmp_path: Path
) -> None:
    home = {"RDUKIT_HOME": str(tmp_path / "home"), "RDUKIT_NODE": "private", "RDUKIT_SND_SOCKET": ""}
    foreign = site.run(**home)
    assert foreign.native_kernels == 0
    assert (
        "another installation built them, and a library is executable code; rebuild them here with rdukit pef "
        "build" in foreign.stderr
    )
    built = tmp_path / "built" / "small.pef"

    def build(**more: str) -> "subprocess.CompletedProcess[str]":
        words = ["pef", "build", str(site.pef), "--output", str(built)]
        how = {"RDUKIT_COMPILE_WORKERS": "1", "RDUKIT_COMPILE_ROUTES": "bf16=f32,f32=blas"}
        environ = environment(site.daemon.home, **home, **how, **more)
        return run_rdukit_forked(words, environ, timeout_s=300, kind="sambaflow")

    refused = build(PATH=str(tmp_path))
    assert refused.returncode != 0 and "no C++ compiler was found" in refused.stderr
    assert not built.exists()
    done = build()
    assert done.returncode == 0, done.stderr
    assert f"{expected.native_kernels} of {expected.native_kernels} kernels are native" in done.stderr
    ran = site.run(built, **home)
    assert ran.native_kernels == expected.native_kernels
    assert (ran.losses, ran.parameters) == (expected.losses, expected.parameters)


@pytest.mark.long
def test_libraries_of_another_installation_are_not_loaded_and_the_numbers_are_the_same(
    site: Site, expected: Ran, tmp_path: Path
) -> None:
    ran = site.run(RDUKIT_HOME=str(tmp_path), RDUKIT_NODE="private", RDUKIT_SND_SOCKET="")
    assert ran.native_kernels == 0
    assert "native kernels not used" in ran.stderr
    assert "another installation built them" in ran.stderr
    assert_same_numbers(ran, expected)


@pytest.mark.long
@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("cpu_capability", "x86_64-0123456789ab", "built for processor x86_64-0123456789ab"),
        ("torch_version", "2.12.0+cpu", "built for torch 2.12.0+cpu"),
    ],
)
def test_libraries_for_another_processor_or_torch_are_not_loaded_and_it_says_why(
    site: Site, expected: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: str, reason: str
) -> None:
    loaded = read_pef(site.pef)
    pef = dataclasses.replace(loaded.pef, **{field: value})
    path = changed(loaded, tmp_path / "other.pef", pef, site.daemon.home, monkeypatch)
    assert read_pef(path).is_trusted
    ran = site.run(path)
    assert ran.native_kernels == 0
    assert reason in ran.stderr
    assert_same_numbers(ran, expected)


@pytest.mark.long
def test_a_library_that_was_exchanged_is_not_loaded(
    site: Site, expected: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is whole and all digests in it hold, but its signature is of the libraries that it had."""
    loaded = read_pef(site.pef)
    exchanged = dataclasses.replace(loaded, natives=dict.fromkeys(loaded.natives, b"\x7fELF and something else"))
    path = changed(exchanged, tmp_path / "exchanged.pef", loaded.pef, tmp_path / "attacker", monkeypatch)
    ran = site.run(path)
    assert ran.native_kernels == 0
    assert "another installation built them" in ran.stderr
    assert_same_numbers(ran, expected)
