"""``rdukit tune`` on programs: points are compiled once, the outcome is taken by compile, and results are reused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from rdukit.errors import InvalidArgument, RuntimeFault
from rdukit.pef.file import read_pef
from rdukit.settings import home_folder
from rdukit_runtime.engine.machine_limits import MachineLimits
from rdukit_runtime.engine.portable import count_operators
from rdukit_runtime.sambatune.config import TuneConfig
from rdukit_runtime.tune.command import tune
from rdukit_runtime.tune.space import point_key
from rdukit_runtime.tune.store import CompiledPoint, ResultFile, forms_of, points_file
from rdukit_runtime.tune.study import Tried, TuneStudy, predict_step
from support import shows
from support.linear_net import LINEAR_NET
from support.pefs.examples import write_example_pef

pytestmark = shows("tune")

#: Writes the example PEF, whose cost depends on batch and tiles, and counts compiles. Six tiles do not compile.
PROGRAM = """
import argparse, sys
from dataclasses import replace
from pathlib import Path
import yaml
from rdukit.pef.file import write_pef
from support.pefs.examples import example_kernels, example_pef

parser = argparse.ArgumentParser()
parser.add_argument("command")
parser.add_argument("-b", "--batch-size", type=int, default=1)
parser.add_argument("--num-tiles", type=int, default=1)
parser.add_argument("--optim-level", default="o0")
parser.add_argument("--output-folder")
parser.add_argument("--pef-name")
parser.add_argument("--yaml-config")
args = parser.parse_args()
with open(Path(__file__).with_name("compiles"), "a") as stream:
    stream.write("x")
if args.yaml_config and TAKES_FILES:
    vars(args).update(yaml.safe_load(open(args.yaml_config)))
if args.num_tiles == 6:
    sys.exit("six tiles do not fit")
seconds = (0.001 if args.optim_level == "o0" else 0.0005) + 0.0001 * args.batch_size / args.num_tiles
pef = example_pef()
section = replace(pef.sections[0], cost=replace(pef.sections[0].cost, seconds=seconds))
pef = replace(pef, sections=(section, *pef.sections[1:]), metadata={**pef.metadata, "batch_size": args.batch_size})
folder = Path(args.output_folder) / args.pef_name
folder.mkdir(parents=True)
write_pef(folder / f"{args.pef_name}.pef", pef, example_kernels(), {})
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(tune, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    path = tmp_path / "app.py"
    path.write_text(PROGRAM.replace("TAKES_FILES", "True"))
    return path


def compiles(program: Path) -> int:
    return len(program.with_name("compiles").read_text())


def found(shown: Result) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(shown.stdout)
    return value


def test_the_best_projected_point_is_written_for_compile_and_a_second_study_compiles_nothing(
    program: Path, tmp_path: Path
) -> None:
    words = ("--try", "num-tiles=1,4,6", "--objective", "projected", "--json", "-o", tmp_path / "best.yaml")
    shown = found(run(program, *words, "--", "-b", 8))
    assert yaml.safe_load((tmp_path / "best.yaml").read_text()) == {"num_tiles": 4}
    assert "times as fast on the emulated chip, projected" in (tmp_path / "best.yaml").read_text()
    (failed,) = (point for point in shown["points"] if point["error"])
    assert failed["options"] == {"num-tiles": 6}
    assert "six tiles do not fit" in failed["error"]
    assert compiles(program) == 1 + 3 + 1, "the program as it is, the points, and the file"
    again = found(run(program, *words, "--", "-b", 8))
    assert again["best"] == shown["best"]
    assert compiles(program) == 5 + 1, "only what failed is tried again"


@pytest.mark.long  # six compiles
def test_a_changed_program_is_compiled_anew(program: Path, tmp_path: Path) -> None:
    words = ("--try", "num-tiles=1,4", "--objective", "projected", "-o", tmp_path / "best.yaml", "--", "-b", 8)
    run(program, *words)
    before = compiles(program)
    program.write_text(program.read_text() + "# changed")
    run(program, *words)
    assert compiles(program) == 2 * before


@pytest.mark.long  # four compiles a case
@pytest.mark.parametrize("option", ["--yaml-config", "--another-config"])
def test_a_program_that_ignores_or_refuses_the_file_gets_options_instead(
    program: Path, tmp_path: Path, option: str
) -> None:
    text = PROGRAM.replace("TAKES_FILES", "False").replace("--yaml-config", option)
    program.write_text(text.replace("args.yaml_config and ", ""))
    (tmp_path / "best.yaml").write_text("num_tiles: 1")
    words = ("--try", "num-tiles=1,4", "--objective", "projected", "-o", tmp_path / "best.yaml")
    shown = run(program, *words, "--", "-b", 8)
    assert "takes no --yaml-config; give it these options: --num-tiles 4" in shown.stdout
    assert (tmp_path / "best.yaml").read_text() == "num_tiles: 1", "the outcome of an earlier study stays"


@pytest.mark.long  # three compiles
def test_a_point_that_is_projected_to_be_as_fast_as_now_is_not_written(program: Path, tmp_path: Path) -> None:
    shown = run(
        program, "--try", "optim-level=o0,o7", "--objective", "projected", "-o", tmp_path / "best.yaml",
        "--", "--optim-level", "o1",
    )  # fmt: skip
    assert "keep the present options" in shown.stdout
    assert not (tmp_path / "best.yaml").exists()


def test_links_of_editors_and_folders_next_to_a_program_are_no_part_of_it(program: Path) -> None:
    config = TuneConfig("app", str(program), str(program))
    before = points_file(config)
    program.with_name(".#app.py").symlink_to("somebody@host.1")
    program.with_name("package.py").mkdir()
    assert points_file(config) == before
    program.with_name("other.py").write_text("# of the program")
    assert points_file(config) != before


def test_portable_sections_are_predicted_by_their_operators_and_kept_apart(
    tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = MachineLimits("processor", 1, 10.0, 10.0, {"f32": 100.0, "bf16": 100.0, "int8": 100.0}, 1e-3)
    loaded = read_pef(write_example_pef(tmp_path / "example.pef"))
    operators = [count_operators(loaded.kernels[section.kernel]) for section in loaded.pef.sections]
    assert operators[0] > 1
    assert predict_step(loaded, limits) == pytest.approx(1e-3 * 2 * len(operators))
    assert predict_step(loaded, limits, "portable") == pytest.approx(1e-3 * (sum(operators) + len(operators)))
    config = TuneConfig("app", str(program), str(program))
    monkeypatch.setenv("RDUKIT_KERNELS", "auto")
    before = points_file(config)
    assert forms_of(config) == "native"
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    assert forms_of(config) == "portable"
    assert points_file(config) != before


def test_the_two_best_points_count_by_the_better_of_two_measurements(tmp_path: Path) -> None:
    limits = MachineLimits("processor", 1, 10.0, 10.0, {"f32": 100.0, "bf16": 100.0, "int8": 100.0}, 1e-3)
    printed: list[str] = []
    files = ResultFile(tmp_path / "points.json"), ResultFile(tmp_path / "measured.json")
    study = TuneStudy(TuneConfig("app", "app.py", "app.py"), limits, *files, printed.append)
    for level, first_s, again_s in (("o0", 1.0, None), ("o1", 0.51, 0.4), ("o3", 0.5, 0.6)):
        point = {"optim-level": level}
        study.tried[point_key(point)] = Tried(point, CompiledPoint(level, 8, 1.0, 1.0))
        study.results.put(study._measured_key(level), {"step_s": first_s})
        if again_s is not None:
            study.results.put(study._measured_key(level, " again"), {"step_s": again_s})
    study.search(6, None)
    assert (study.measurements, study.reused) == (0, 5), "all are results of earlier studies"
    assert study.best("measured").point == {"optim-level": "o1"}
    assert [each.measured for each in study.compiled] == [8.0, 20.0, 16.0]
    assert len([line for line in printed if line.endswith("measured again")]) == 2


def test_results_of_others_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tune" / "measured.json"
    mine, fresh = ResultFile.read(path), ResultFile(path)
    mine.put("a", {"step_s": 1.0})
    fresh.put("b", {"step_s": 2.0})
    mine.put("a", {"step_s": 3.0})
    assert fresh.find_seconds("a") is None, "a fresh study reuses nothing"
    kept = ResultFile.read(path)
    assert [(key, kept.find_seconds(key)) for key in kept.results] == [("b", 2.0), ("a", 3.0)]
    assert [each.name for each in path.parent.iterdir()] == ["measured.json"]


@pytest.mark.long  # three compiles
def test_a_configuration_of_sambatune_is_the_space_and_a_best_that_is_now_writes_nothing(
    program: Path, tmp_path: Path
) -> None:
    config = tmp_path / "app.yaml"
    config.write_text("app: app.py\nmodel-args: -b 8 --num-tiles 4\nsamba-sweep-parameters: {--num-tiles: [1, 2]}\n")
    shown = run(config, "--objective", "projected", "-o", tmp_path / "best.yaml")
    assert "keep the present options" in shown.stdout
    assert not (tmp_path / "best.yaml").exists()


@pytest.mark.long  # twenty compiles
def test_damaged_results_of_earlier_studies_are_not_used(program: Path, tmp_path: Path) -> None:
    words = ("--try", "num-tiles=1,4", "--objective", "projected", "-o", tmp_path / "best.yaml")
    run(program, *words, "--", "-b", 8)
    files = list((home_folder() / "tune").glob("points-*.json"))
    for text in ("{", "[]", '{"schema": 1, "results": 3}', '{"schema": 1, "results": {"{}": {"digest": 1}}}'):
        for file in files:
            file.write_text(text)
        before = compiles(program)
        run(program, *words, "--", "-b", 8)
        assert compiles(program) == before + 4


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no program"):
        run(tmp_path / "none.py")


@pytest.mark.long  # three compiles
def test_a_program_that_never_compiles_says_why(program: Path) -> None:
    with pytest.raises(RuntimeFault, match=r"no point compiles; the first: .*six tiles do not fit"):
        run(program, "--try", "batch-size=1,2", "--", "--num-tiles", 6)


@pytest.mark.long  # compiles and measures a real program several times
def test_a_real_program_gets_faster_options_by_measurements(tmp_path: Path) -> None:
    program = tmp_path / "linear_net.py"
    program.write_text(LINEAR_NET)
    words = ("--try", "batch-size=8,512", "--rounds", "9", "-o", tmp_path / "best.yaml", "--json")
    arguments = ("--", "-b", 8, "--in-features", 64)
    first = found(run(program, *words, *arguments))
    assert first["best"] == {"batch-size": 512}
    assert first["gain"]["low"] > 1.0
    assert yaml.safe_load((tmp_path / "best.yaml").read_text()) == {"batch_size": 512}
    second = run(program, *words, *arguments)
    assert found(second)["gain"] == first["gain"]
    assert found(second)["elapsed_s"] < first["elapsed_s"]
