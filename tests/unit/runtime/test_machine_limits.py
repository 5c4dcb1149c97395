"""The machine's limits: measured, kept, measured again when the file is damaged or another machine's."""

import json
import os
import threading
import time
from pathlib import Path

import pytest
import torch

from rdukit.errors import InvalidArgument
from rdukit_runtime.engine.machine_limits import (
    limits_file,
    load_limits,
    measure_limits,
    processor_name,
    renew_limits,
)
from rdukit_runtime.engine.machine_probe import (
    GEMM_DTYPES,
    DeviceTimer,
    Load,
    last_cache_bytes,
    others_share,
    read_load,
)
from support import shows

pytestmark = shows("pef-profile")

#: Enough for a figure that is not zero.
SHORT_S = 0.01


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path))
    return tmp_path


def keep(threads: int = 1, read_gb_s: float = 40.0, **changed: object) -> dict[str, object]:
    """Write limits that no measurement would give, and return them."""
    value: dict[str, object] = {
        "processor": processor_name(), "threads": threads, "read_gb_s": read_gb_s, "copy_gb_s": 39.0,
        "gemm": {"f32": 100.0, "bf16": 400.0, "int8": 900.0}, "operator_s": 1e-6, "others_share": 0.0, **changed,
    }  # fmt: skip
    limits_file().parent.mkdir(parents=True, exist_ok=True)
    limits_file().write_text(json.dumps({"limits": [value]}))
    return value


def test_a_measurement_has_a_figure_for_everything_and_leaves_the_threads_as_they_were() -> None:
    former = torch.get_num_threads()
    limits = measure_limits(1, SHORT_S)
    assert torch.get_num_threads() == former
    assert limits.threads == 1
    assert limits.processor
    assert set(limits.gemm) == set(GEMM_DTYPES)
    assert min(limits.read_gb_s, limits.copy_gb_s, limits.gemm["f32"], limits.operator_s) > 0
    assert limits.memory_gb_s == max(limits.read_gb_s, limits.copy_gb_s)


def test_what_is_kept_is_read_and_not_measured() -> None:
    keep(read_gb_s=12345.0)
    assert load_limits(1).read_gb_s == 12345.0


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"limits": [{}]}', '{"limits": [{"threads": "x"}]}', '{"limits": 3}'],
    ids=["empty", "half", "list", "no-figures", "no-number", "no-list"],
)
def test_a_damaged_file_is_measured_again_and_replaced(content: str) -> None:
    keep()
    limits_file().write_text(content)
    measured = load_limits(1, SHORT_S)
    assert json.loads(limits_file().read_text())["limits"][0]["read_gb_s"] == measured.read_gb_s
    assert load_limits(1, SHORT_S).read_gb_s >= measured.read_gb_s


def test_figures_that_no_machine_has_are_measured_again() -> None:
    keep(read_gb_s=0.0)
    assert load_limits(1, SHORT_S).read_gb_s > 0
    keep(gemm={"f32": -1.0, "bf16": 1.0, "int8": 1.0})
    assert load_limits(1, SHORT_S).gemm["f32"] > 0


def test_limits_of_another_processor_are_not_used() -> None:
    keep(processor="another machine that shares this folder", read_gb_s=12345.0)
    assert load_limits(1, SHORT_S).read_gb_s != 12345.0


def test_more_threads_have_their_own_figures_and_are_never_slower_than_fewer() -> None:
    keep(threads=1, read_gb_s=54321.0)
    more = load_limits(2, SHORT_S)
    assert more.threads == 2
    assert more.read_gb_s == 54321.0
    assert [entry["threads"] for entry in json.loads(limits_file().read_text())["limits"]] == [1, 2]


def test_measuring_again_replaces_what_was_kept() -> None:
    keep(read_gb_s=12345.0)
    assert renew_limits(1, SHORT_S).read_gb_s != 12345.0
    assert load_limits(1).read_gb_s != 12345.0


@pytest.mark.parametrize("share", [0.515625, None], ids=["disturbed", "unknown"])
def test_limits_measured_beside_other_programs_are_measured_again_and_keep_the_best(share: float | None) -> None:
    value = keep(read_gb_s=12345.0, others_share=share, operator_s=1.0)
    if share is None:
        del value["others_share"]
        limits_file().write_text(json.dumps({"limits": [value]}))
    again = load_limits(1, SHORT_S)
    assert again.read_gb_s == 12345.0 and again.operator_s < 1.0
    assert again.others_share not in {0.515625, None}


def test_the_share_of_others_is_what_the_machine_did_and_this_process_did_not(tmp_path: Path) -> None:
    before = Load(10.0, 100.0, 3.0)
    assert others_share(before, Load(12.0, 103.0, 5.0), 2) == 0.25
    assert others_share(before, Load(12.0, 102.0, 5.0), 2) == 0.0
    assert others_share(None, before, 2) == others_share(before, before, 2) == 0.0
    (stat := tmp_path / "stat").write_text("cpu  100 0 50 900 50 0 0 25 10 0\ncpu0 1 2 3\n")
    found = read_load(stat)
    assert found is not None and found.machine_s == 175 / os.sysconf("SC_CLK_TCK")
    assert read_load(tmp_path / "none") is None


def test_one_thread_is_not_charged_for_the_time_that_it_waits() -> None:
    clock = DeviceTimer(torch.device("cpu"), is_own_time=True)

    def compute() -> None:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass

    def wait_for_another() -> None:
        other = threading.Thread(target=compute)
        other.start()
        other.join()

    assert clock.best_seconds(wait_for_another, 0.0) < 0.02


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(home: Path) -> None:
    (home / "machine").write_text("a file where the folder should be")
    assert load_limits(1, SHORT_S).read_gb_s > 0


def test_no_threads_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="1 or more"):
        load_limits(0)


def test_the_last_cache_has_a_plausible_size() -> None:
    assert 2**18 <= last_cache_bytes() <= 2**33
