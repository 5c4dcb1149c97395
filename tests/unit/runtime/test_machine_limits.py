"""The machine's limits: measured, kept, measured again when the file is damaged or another machine's."""

import json
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
from rdukit_runtime.engine.machine_probe import GEMM_DTYPES, last_cache_bytes

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
        "gemm": {"f32": 100.0, "bf16": 400.0, "int8": 900.0}, "operator_s": 1e-6, **changed,
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
    assert load_limits(1) == measured


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


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(home: Path) -> None:
    (home / "machine").write_text("a file where the folder should be")
    assert load_limits(1, SHORT_S).read_gb_s > 0


def test_no_threads_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="1 or more"):
        load_limits(0)


def test_the_last_cache_has_a_plausible_size() -> None:
    assert 2**18 <= last_cache_bytes() <= 2**33
