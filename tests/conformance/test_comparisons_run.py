"""``rdukit bench`` as its user runs it, on portable kernels; and the training models against eager torch."""

import copy
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rdukit_bench.comparisons.training_cases import TrainingCase, get_case, loss_difference, make_case, our_step

from rdukit_zoo.modules import PlainGpt2
from support import shows, wait_until

pytestmark = shows("bench")

BENCH = [sys.executable, "-c", "import sys; from rdukit.cli import run_command;"
         "from rdukit_bench.comparisons.cli import bench; run_command(bench)"]  # fmt: skip


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "RDUKIT_HOME": str(home), "RDUKIT_KERNELS": "portable", "TMPDIR": str(home)}


def run_bench(home: Path, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    environ = {**environment(home), **more}
    return subprocess.run([*BENCH, *arguments], capture_output=True, text=True, env=environ, check=False)


def test_the_list_names_every_comparison(tmp_path: Path) -> None:
    made = run_bench(tmp_path, "--list", "--json")
    assert {"training_step", "first_call", "threads", "training_memory"} <= {e["name"] for e in json.loads(made.stdout)}


def test_an_unknown_name_ends_with_its_error_before_anything_runs(tmp_path: Path) -> None:
    made = run_bench(tmp_path, "sorting")
    assert made.returncode == 2
    assert "expected training_step" in made.stderr


def test_a_word_that_is_in_no_case_ends_with_its_error(tmp_path: Path) -> None:
    made = run_bench(tmp_path, "training_memory", "--only", "f32")
    assert (made.returncode, made.stdout) == (2, "")
    assert "'f32' is in no case of training_memory" in made.stderr


@pytest.mark.long
def test_a_comparison_gives_its_rows_and_leaves_no_scratch(tmp_path: Path) -> None:
    made = run_bench(tmp_path, "training_memory", "--only", "mlp-wide", "-o", str(tmp_path / "out"))
    assert made.returncode == 0, made.stderr
    (row,) = json.loads((tmp_path / "out" / "bench.json").read_text())["rows"]
    parameters = row["details"]["rdukit"]["parameters"]
    assert row["ours_value"] > 3 * parameters and row["peer_value"] > 3 * parameters
    assert row["details"]["rdukit"]["loss"] == pytest.approx(row["details"]["eager + fused AdamW"]["loss"], rel=1e-4)
    assert list(tmp_path.glob("rdukit-bench-*")) == []


def test_a_comparison_that_fails_is_named_with_its_reason_and_status_one(tmp_path: Path) -> None:
    made = run_bench(tmp_path, "training_memory", "--only", "mlp-wide", RDUKIT_KERNELS="nonsense")
    assert made.returncode == 1
    assert "training_memory: exit status" in made.stdout


def test_an_interrupt_prints_what_is_done_and_kills_the_children(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*BENCH, "training_step"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(tmp_path)
    )
    log = wait_for_child(tmp_path)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "training_step: interrupted" in out
    assert not log.exists()
    wait_until(lambda: "rdukit_bench.comparisons.runner" not in commands_in(tmp_path), 120)


def wait_for_child(folder: Path) -> Path:
    """The log of a child that has started."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = list(folder.glob("rdukit-bench-*/training_step.log"))
        if found and "rdukit_bench.comparisons.runner" in commands_in(folder):
            return found[0]
        time.sleep(0.05)
    pytest.fail("no comparison has started")


def commands_in(folder: Path) -> str:
    """Command lines of the processes that name ``folder``."""
    lines = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            lines.append(line)
    return "\n".join(lines)


@pytest.mark.parametrize("name", ["mlp", "lstm", "conv1d", "lenet"])
def test_a_training_case_gives_eager_torchs_losses(name: str, tmp_path: Path) -> None:
    case = get_case(name)
    module, batch = make_case(case)
    ours = our_step(case, copy.deepcopy(module), batch, tmp_path)
    # f32: sums in another order
    assert loss_difference(module, batch, ours) < 1e-5


@pytest.mark.parametrize(("precision", "tolerance"), [("f32", 1e-5), ("bf16", 2e-2)])
def test_a_tied_gpt2_gives_eager_torchs_losses(precision: str, tolerance: float, tmp_path: Path) -> None:
    case = TrainingCase(
        "tiny", lambda: PlainGpt2(layers=2, width=32, heads=4, words=97, length=16),
        lambda: {"tokens": torch.randint(97, (1, 16)), "targets": torch.randint(97, (1, 16))},
        mode="o1", precision=precision,
    )  # fmt: skip
    module, batch = make_case(case)
    ours = our_step(case, copy.deepcopy(module), batch, tmp_path)
    # bf16 has 8 bits of mantissa; f32: sums in another order
    assert loss_difference(module, batch, ours) < tolerance


def test_an_optimizer_of_samba_does_not_load_torchs_compiler(tmp_path: Path) -> None:
    code = (
        "import sys, torch, sambaflow.samba as samba; m = torch.nn.Linear(3, 3); samba.from_torch_model_(m);"
        "o = samba.optim.AdamW(m.parameters(), lr=1e-3); assert len(o.param_groups[0]['params']) == 2;"
        "print('torch._dynamo' in sys.modules)"
    )
    made = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(tmp_path), check=True
    )
    assert made.stdout.split() == ["False"]
