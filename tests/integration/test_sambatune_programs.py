"""``sambatune`` on real programs: compile, runs, counters, reports; and what is left when steps fail."""

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rdukit_runtime.sambatune.cli import sambatune
from rdukit_runtime.sambatune.counters import read_perf_counters
from support import shows
from support.linear_net import LINEAR_NET

pytestmark = shows("sambatune", "read_perf_counters")

CONFIG = """
app: linear_net.py
model-args: -b 128 -mb 64 --in-features 512 --out-features 128
compile-args: compile --plot --gen-tensorboard --stage-instrumentation=metapipe_stage_cycles
run-args: -n 10
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(sambatune, [str(argument) for argument in arguments], catch_exceptions=False)


def reports_in(root: Path) -> Path:
    (found,) = root.glob("sambatune_gen/*/reports")
    return found


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "linear_net.py").write_text(LINEAR_NET)
    (folder / "linear_net.yaml").write_text(CONFIG)
    shown = run("--artifact-root", folder / "root", folder / "linear_net.yaml")
    assert shown.exit_code == 0, shown.output
    return folder


def test_the_documented_tree_is_there(tuned: Path) -> None:
    reports = reports_in(tuned / "root")
    names = {str(path.relative_to(reports)) for path in reports.rglob("*") if path.is_file()}
    assert names >= {
        "snprof/summary.csv", "section_report.csv", "stage_report.csv", "analysis/summary.json", "unified.json",
        "collated_report.xlsx", "runtime_perf_info.json", "benchmark-data/measure_performance.json",
        "run_benchmarks/raw_data/run_with_benchmark.sh", "report.html",
    }  # fmt: skip
    (trace,) = reports.glob("*_chrome_tracing_report.json")
    assert any(event["name"] == "session.run" for event in json.loads(trace.read_text())["traceEvents"])
    logs = {path.name for path in (reports.parent / "logs").iterdir()}
    assert logs == {"status_summary.log", "status_debug.log", "failures_debug.log", "run.log", "elapsed_time.log"}
    (pef,) = (tuned / "root" / "apps").glob("*/compile/*/*.pef")
    assert pef.stem == pef.parent.name
    assert len(list((pef.parent / "tensorboard").glob("events.out.tfevents.*"))) == 1
    assert (tuned / "root" / "perf_data" / "snprof" / f"{pef.stem}.json").is_file()


def test_sections_have_both_clocks_and_stages_are_projected(tuned: Path) -> None:
    reports = reports_in(tuned / "root")
    with (reports / "section_report.csv").open() as stream:
        sections = list(csv.DictReader(stream))
    assert [section["section_type"] for section in sections] == ["fwd", "bckwd", "opt"]
    assert all(float(section["host_latency_s"]) > 0 for section in sections)
    assert all(float(section["projected_throughput_samples_s"]) > 0 for section in sections)
    with (reports / "stage_report.csv").open() as stream:
        stages = list(csv.DictReader(stream))
    assert {stage["section_id"] for stage in stages} == {"0", "1", "2"}
    assert any("mm" in stage["template_names"] for stage in stages)
    with (reports / "snprof" / "summary.csv").open() as stream:
        rows = [row["Breakdown"] for row in csv.DictReader(stream)]
    assert rows[0] == "TOTAL"
    assert len(rows) == 8


def test_reports_are_made_from_existing_compile_output_and_a_missing_program_part_is_told(tuned: Path) -> None:
    (pef,) = (tuned / "root" / "apps").glob("*/compile/*/*.pef")
    (tuned / "fails.py").write_text("raise SystemExit('no weights here')")
    (tuned / "existing.yaml").write_text(f"app: fails.py\nexisting-compile-output: {pef.parent}\n")
    shown = run("--artifact-root", tuned / "second", tuned / "existing.yaml")
    assert shown.exit_code == 1
    assert "SUCCESS: existing compile output" in shown.stdout
    assert "FAILURE: snprof" in shown.stdout
    assert "no weights here" in shown.stdout
    assert "these steps failed: snprof, measure-sections, measure-performance, graph only" in shown.stderr
    reports = reports_in(tuned / "second")
    assert (reports / "section_report.csv").is_file()
    assert (reports / "stage_report.csv").is_file()
    assert "failed" in json.loads((reports / "analysis" / "summary.json").read_text())["Overview"]


def test_counters_of_an_instrumented_compile_are_printed(tuned: Path) -> None:
    (pef,) = (tuned / "root" / "apps").glob("*/compile/*/*.pef")
    shown = CliRunner().invoke(read_perf_counters, ["-p", str(pef)], catch_exceptions=False)
    found = json.loads(shown.stdout)
    assert found["counters"] == ["metapipe_stage_cycles"]
    assert all(stage["metapipe_stage_cycles"] > 0 for stage in found["stages"])


def test_a_failed_compile_leaves_the_other_steps_told_and_the_status_1(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("raise SystemExit('out of ideas')")
    (tmp_path / "c.yaml").write_text("app: app.py\n")
    shown = run("--artifact-root", tmp_path / "root", "--modes", "benchmark", "run", "--", tmp_path / "c.yaml")
    assert shown.exit_code == 1
    assert "Message: the command ended with status 1: out of ideas" in shown.stdout
    assert "needs the result of step 'compile baseline'" in shown.stdout
    (summary,) = (tmp_path / "root").glob("sambatune_gen/*/logs/status_summary.log")
    lines = summary.read_text().splitlines()
    assert lines[0].startswith("SUCCESS : save the configuration")
    assert [line for line in lines if line.startswith("FAILURE : run (-1.000")]


def test_a_sweep_has_a_folder_for_each_combination_and_a_table(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import sys; raise SystemExit(' '.join(sys.argv))")
    (tmp_path / "c.yaml").write_text("app: app.py\nsamba-sweep-parameters:\n  num-tiles: [1, 4]\n")
    shown = run("--artifact-root", tmp_path / "root", "--compile-only", tmp_path / "c.yaml")
    assert shown.exit_code == 1
    rows = json.loads((tmp_path / "root" / "sambatune_gen" / "c_sweep.json").read_text())
    assert [row["num-tiles"] for row in rows] == [1, 4]
    for row in rows:
        log = (Path(row["reports"]).parent / "logs" / "run.log").read_text()
        assert f"--num-tiles {row['num-tiles']} " in log


def test_wrong_configurations_and_modes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("app: none.py\n")
    refused = CliRunner().invoke(sambatune, ["--artifact-root", str(tmp_path / "root"), str(tmp_path / "c.yaml")])
    assert "no program 'none.py'" in str(refused.exception)
    assert not (tmp_path / "root").exists()
    shown = run("--modes", "benchmark", tmp_path / "c.yaml")
    assert shown.exit_code == 2
    assert "then -- before the configuration" in shown.stderr
