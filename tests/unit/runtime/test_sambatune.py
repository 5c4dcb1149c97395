"""sambatune: its configuration, modes, logs, reports and workbook, and the counters of instrumented PEFs."""

import io
import json
import math
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import openpyxl
import pytest

from rdukit.errors import InvalidArgument, NotFound, RuntimeFault
from rdukit.pef.file import write_pef
from rdukit_runtime.profile.step import Breakdown, BreakdownRow
from rdukit_runtime.sambatune.cli import spread_modes
from rdukit_runtime.sambatune.config import KEYS, read_config
from rdukit_runtime.sambatune.counters import counters_of
from rdukit_runtime.sambatune.reports import insights, section_rows, stage_rows, verdict_of
from rdukit_runtime.sambatune.steps import StepLog, log_texts
from rdukit_runtime.sambatune.tune import choose_paths
from rdukit_runtime.sambatune.workbook import make_workbook
from support import shows
from support.pefs.examples import example_kernels, example_pef

pytestmark = shows("sambatune", "read_perf_counters")

#: The values of the vendor's linear net.
LINEAR_NET = """
app: linear_net.py

model-args: >
  -b 128
  -mb 64
  --in-features 512
  --out-features 128

compile-args: >
  compile
  --plot

run-args: -n $ROUNDS

env:
  ROUNDS: 10000
"""
STAGES = {
    "arch": "sn10",
    "clock_hz": 1e9,
    "sections": [
        {
            "section_id": 0,
            "stages": [
                {"operator": "aten.linear", "cycles": 400, "pcus": 8, "compute_cycles": 400, "memory_cycles": 90},
                {"operator": "aten.mean", "cycles": 100, "pcus": 2, "compute_cycles": 100, "memory_cycles": 20},
            ],
        }
    ],
}


def breakdown(computing: int, transfers: int) -> Breakdown:
    rows = dict.fromkeys(BreakdownRow, 0)
    rows |= {BreakdownRow.TOTAL: 1000, BreakdownRow.RUN_HW: computing, BreakdownRow.XFER: transfers}
    rows[BreakdownRow.SAMBA] = 1000 - computing - transfers
    return Breakdown(rows, 10, 1)


def test_folded_text_and_variables_become_arguments() -> None:
    found = read_config("linear_net.yaml", LINEAR_NET, {})
    assert found.model_args == ("-b", "128", "-mb", "64", "--in-features", "512", "--out-features", "128")
    assert found.compile_args == ("compile", "--plot")
    assert found.run_args == ("-n", "10000")
    assert (found.app, found.run_app, found.env) == ("linear_net.py", "linear_net.py", {"ROUNDS": "10000"})


@pytest.mark.parametrize("key", KEYS)
def test_an_unknown_key_is_refused_by_the_nearest_name(key: str) -> None:
    with pytest.raises(InvalidArgument, match=f"c.yaml: line 2: unknown key '{key}s'. Did you mean .*'{key}'"):
        read_config("c.yaml", f"app: a.py\n{key}s: 1\n", {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model-args: -b 1", "'app' is missing"),
        ("app: a.py\nparameter-sweep-batch: 1", "not implemented"),
        ("app: a.py\ncompile-args: --plot", "expected 'compile'"),
        ("app: a.py\nrun-args: -n $NONE", r"\$NONE, which is not set"),
        ("app: a.py\nmodel-args: [-b, 1]", "expected text"),
        ('app: a.py\nmodel-args: "-b \'1"', "cannot be read as arguments"),
        ("app: a.py\nenv: 3", "expected a mapping"),
        ("app: a.py\nsamba-sweep-parameters: {lr: 3}", "expected a list"),
        ("- app", "expected keys"),
        ("app: a.py\napp: b.py", "duplicate key"),
        ("app: [", "not valid YAML"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        read_config("c.yaml", text, {})


def test_a_sweep_runs_all_combinations() -> None:
    text = LINEAR_NET + "samba-sweep-parameters:\n  num-tiles: [1, 4]\n  --optim-level: [o0, o1, o3]\n"
    found = list(read_config("linear_net.yaml", text, {}).combinations())
    assert len(found) == 6
    chosen, first = found[0]
    assert chosen == {"num-tiles": 1, "--optim-level": "o0"}
    assert first.model_args[-4:] == ("--num-tiles", "1", "--optim-level", "o0")
    assert first.sweep == {}


def test_a_sweep_turns_flags_on_and_off() -> None:
    text = LINEAR_NET + "samba-sweep-parameters:\n  inference: [true, false, null]\n"
    endings = [one.model_args[-1] for _, one in read_config("linear_net.yaml", text, {}).combinations()]
    assert endings[0] == "--inference"
    assert "--inference" not in endings[1:]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["--modes", "benchmark", "run", "--", "c.yaml"], ["-m", "benchmark", "-m", "run", "--", "c.yaml"]),
        (["c.yaml", "-m", "run", "--compile-only"], ["c.yaml", "-m", "run", "--compile-only"]),
        (["-m", "run", "c.yaml"], ["-m", "run", "-m", "c.yaml"]),
        (["c.yaml"], ["c.yaml"]),
    ],
)
def test_modes_take_all_words_up_to_the_next_option(given: list[str], wanted: list[str]) -> None:
    assert spread_modes(given) == wanted


def test_folders_carry_chip_minute_and_program_and_are_new(tmp_path: Path) -> None:
    config = replace(read_config("linear_net.yaml", LINEAR_NET, {}), model_args=("--arch", "sn30"))
    now = datetime(2026, 11, 29, 20, 41)
    first = choose_paths(tmp_path, config, now)
    assert (first.label, first.run) == ("sn30__11_29_20_41_linear_net", "linear_net_11_29_20_41")
    first.generated.mkdir(parents=True)
    assert choose_paths(tmp_path, config, now).run == "linear_net_11_29_20_41_2"


def test_a_failed_step_stops_no_other_and_is_told_in_the_logs(tmp_path: Path) -> None:
    lines: list[str] = []
    seconds = iter([0.0, 1.5, 2.0, 2.25])
    log = StepLog(tmp_path, lines.append, lambda: datetime(2026, 11, 29, 20, 41), lambda: next(seconds))

    def fail() -> None:
        raise NotFound("no such program")

    assert not log.run("compile baseline", fail, ["python", "a b.py"])
    log.skip("snprof", "compile baseline")
    assert log.run("reports", lambda: None)
    log.write()
    assert lines[:2] == [
        "29-Nov 20:41:00 - Error - FAILURE: compile baseline", "29-Nov 20:41:00 - Error - Message: no such program",
    ]  # fmt: skip
    assert lines[-1] == "29-Nov 20:41:00 - Info - SUCCESS: reports"
    assert [step.name for step in log.failed] == ["compile baseline", "snprof"]
    texts = {name: (tmp_path / name).read_text() for name in log_texts(log.results)}
    assert texts["status_summary.log"].splitlines() == [
        "FAILURE : compile baseline (1.500 sec)", "FAILURE : snprof (-1.000 sec)", "SUCCESS : reports (0.250 sec)",
    ]  # fmt: skip
    assert texts["status_debug.log"] == "# compile baseline\npython 'a b.py'\n"
    assert "no such program" in texts["failures_debug.log"]
    assert texts["elapsed_time.log"].endswith("total: 1.750 s\n")
    assert (tmp_path / "run.log").read_text().splitlines() == lines


def test_sections_keep_the_two_clocks_apart() -> None:
    linear, sgd = section_rows(example_pef(), 128, {0: (4, 8_000_000)})
    assert linear["projected_latency_s"] == 0.0001
    assert linear["projected_throughput_samples_s"] == pytest.approx(1_280_000)
    assert linear["projected_ddr_total_gb_s"] == pytest.approx((48 + 32 + 36) / 0.0001 / 1e9)
    assert linear["host_latency_s"] == 0.002
    assert linear["host_throughput_samples_s"] == 64_000
    assert (sgd["host_latency_s"], sgd["host_throughput_samples_s"]) == (None, None)
    assert not any("measured" in name for name in linear)


def test_stages_have_their_slowdown_and_their_stall() -> None:
    first, second = stage_rows(STAGES, ("metapipe_stage_cycles", "read_stall_cycles"))
    assert (first["slowdown_factor"], first["stall"], first["read_stall_cycles"]) == (1.0, 0.0, 0)
    assert (second["mac_id"], second["slowdown_factor"], second["stall"]) == (1, 0.25, 0.75)
    assert (second["metapipe_stage_cycles"], second["read_stall_cycles"]) == (100, 300)
    assert second["projected_latency_s"] == pytest.approx(1e-7)


@pytest.mark.parametrize(("host", "words"), [(0.9, "RDU bound"), (12.0, "mildly to moderately"), (79.0, "could be")])
def test_the_verdict_follows_the_hosts_share(host: float, words: str) -> None:
    assert words in verdict_of(host)


def test_insights_name_what_takes_longest_and_where_to_look_next() -> None:
    found = insights(example_pef(), breakdown(computing=300, transfers=600), stage_rows(STAGES))
    assert found["Overview"]["host_percent"] == 70.0
    assert found["Host"][0]["process"] == "XFER"
    assert "fewer outputs" in found["Host"][0]["next"]
    assert "section 0 (linear) takes 50.0 %" in found["RDU"][0]["section"]
    assert found["RDU"][0]["Top 3 stages"][0].startswith("stage 0: aten.linear, 400 cycles")
    assert "failed" in insights(example_pef(), None, [])["Overview"]


def test_a_workbook_holds_its_rows_as_numbers_and_text() -> None:
    row = {
        "name": "<a & b>",
        "cycles": 4,
        "share": 0.5,
        "none": None,
        "harm": "=1+1",
        "url": "http://x",
        "no": math.nan,
    }
    data = make_workbook({"Stage Latency": [row], "Empty": []})
    found = openpyxl.load_workbook(io.BytesIO(data))
    assert found.sheetnames == ["Stage Latency", "Empty"]
    head, cells = found["Stage Latency"].iter_rows()
    assert [cell.value for cell in head] == list(row)
    assert [cell.value for cell in cells] == ["<a & b>", 4, 0.5, None, "=1+1", "http://x", "nan"]
    assert [cell.data_type for cell in cells] == ["s", "n", "n", "n", "s", "s", "s"]
    assert all(cell.hyperlink is None for cell in cells)
    assert data == make_workbook({"Stage Latency": [row], "Empty": []})


def write_instrumented(folder: Path, **options: object) -> Path:
    path = folder / "example.pef"
    write_pef(path, replace(example_pef(), metadata=options), example_kernels(), {})
    (folder / "mac_gen").mkdir(exist_ok=True)
    (folder / "mac_gen" / "stages.json").write_text(json.dumps(STAGES))
    return path


def test_counters_are_those_that_the_compile_was_asked_for(tmp_path: Path) -> None:
    options = {"stage_instrumentation": "metapipe_stage_cycles", "include_read_stall_cycles": True}
    found = counters_of(write_instrumented(tmp_path, **options))
    assert found["counters"] == ["metapipe_stage_cycles", "read_stall_cycles"]
    assert [stage["read_stall_cycles"] for stage in found["stages"]] == [0, 300]
    assert "projected" in found["clock"]
    found = counters_of(write_instrumented(tmp_path, stage_instrumentation="metapipe_buf_cycles"))
    assert [stage["metapipe_buf_cycles"] for stage in found["stages"]] == [90, 20]


def test_a_pef_without_instrumentation_has_no_counters(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFault, match="compile it with --stage-instrumentation="):
        counters_of(write_instrumented(tmp_path))
    with pytest.raises(InvalidArgument, match="unknown --stage-instrumentation 'all'"):
        counters_of(write_instrumented(tmp_path, stage_instrumentation="all"))
    path = write_instrumented(tmp_path, stage_instrumentation="metapipe_stage_cycles")
    (tmp_path / "mac_gen" / "stages.json").unlink()
    with pytest.raises(NotFound, match="compile again"):
        counters_of(path)
