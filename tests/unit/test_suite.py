"""The suite's own scripts: which files run in which parts, what a change touches, what each file shows, the report."""

from pathlib import Path

import pytest

import run_tests as script
from suite import changed, features, plan, records, running
from support import shows, tiers

pytestmark = shows("project", "engine-tests")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("is_all", [False, True])
def test_every_file_of_tests_is_in_one_part(is_all: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is in none would never run."""
    monkeypatch.chdir(ROOT)
    parts = plan.plan(plan.all_files(), is_all)
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    assert sorted(file for part in parts for file in part.files) == files
    assert len({part.name for part in parts}) == len(parts)


def test_parts_take_about_the_same_time() -> None:
    times = {"a": 8.0, "b": 5.0, "c": 4.0, "d": 1.0}
    assert [part.files for part in plan.deal("x", times, 2, times)] == [["a", "d"], ["b", "c"]]
    assert [part.files for part in plan.deal("x", ["b", "c", "a"], 2)] == [["a", "c"], ["b"]]
    assert [part.files for part in plan.deal("x", ["a"], 2)] == [["a"]], "no part is empty"


def test_parts_that_wait_run_beside_parts_that_compute() -> None:
    waiting, computing = [[plan.Part(f"{kind}{i}", []) for i in range(count)] for kind, count in (("w", 4), ("c", 2))]
    assert [part.name for part in plan.mix(waiting, computing)] == ["w0", "c0", "w1", "w2", "c1", "w3"]
    assert [part.name for part in plan.mix(waiting, [])] == ["w0", "w1", "w2", "w3"]


def test_the_last_line_counts_all_parts() -> None:
    one = [
        "FAILED tests/x.py::test_x - assert 7 == 3 passed",
        "2 failed, 30 passed, 4 skipped in 100.02s (0:01:40)\n",
        "",
    ]
    assert running.total([one, ["1 passed, 5 skipped, 1 error in 3.00s"]]) == "2 failed, 31 passed, 9 skipped, 1 error"
    assert running.total([["no tests ran in 0.01s"], ["3 deselected in 0.5s"]]) == "3 deselected"
    assert running.total([[], ["killed"]]) == ""


@pytest.mark.parametrize(
    ("statuses", "status"),
    [([0, 0], 0), ([0, 1], 1), ([2, 0], 2), ([5, 0], 0), ([5, 1], 1), ([5, 5], 5), ([-9, 0], -9)],
)
def test_any_part_that_fails_fails_the_whole(statuses: list[int], status: int) -> None:
    assert running.choose_status(statuses) == status


def test_a_path_among_the_arguments_is_told_from_options_and_their_values() -> None:
    path = str(Path(__file__))
    assert script.names_path(path) and script.names_path(f"{path}::test_x")
    assert not script.names_path("-x") and not script.names_path("pef and not box")


def test_a_table_is_short_where_it_is_said_and_long_elsewhere() -> None:
    first, second, third = tiers.others_long(["a", ("b", 1), "c"], {"a", "c"})
    assert (first, third, second.values) == ("a", "c", ("b", 1))
    assert [mark.name for mark in second.marks] == ["long"]


def test_each_feature_has_a_short_case_and_each_file_names_what_it_shows() -> None:
    """Nothing gets lost: a feature that only ``make test-all`` showed could break unseen for a day."""
    assert features.find_faults(features.find_features(), features.read_shown()) == []


def test_a_feature_without_a_short_case_a_file_without_a_line_and_a_misspelt_name_are_faults() -> None:
    known = {"pipelines": ["page"], "sweep": ["command"]}
    shown = [features.Shown("a", ("sweep",), False), features.Shown("b", (), True),
             features.Shown("c", ("pipeline",), True)]  # fmt: skip
    assert features.find_faults(known, shown) == [
        "b: name what it shows: pytestmark = shows(…)",
        "c: no feature is named 'pipeline'; near: pipelines",
        "pipelines (page): no short case shows it",
        "sweep (command): no short case shows it",
    ]


@pytest.mark.parametrize(
    ("text", "is_short"),
    [
        ("def test_a(): ...", True),
        ("@pytest.mark.long\ndef test_a(): ...", False),
        ("@pytest.mark.long\ndef test_a(): ...\ndef test_b(): ...", True),
        ("pytestmark = [shows('x'), pytest.mark.long]\ndef test_a(): ...", False),
        ("@pytest.mark.long\nclass TestA:\n    def test_a(self): ...", False),
        ("class TestA(Contract):\n    pass", True),
        ("@pytest.mark.long\nclass TestA(Contract):\n    pass", False),
    ],
)
def test_a_file_is_short_if_any_of_its_cases_is(text: str, is_short: bool) -> None:
    assert features.has_short_case(features.ast.parse(text)) is is_short


def test_the_tests_nearest_to_a_change_run_as_time_allows() -> None:
    imports = {
        "core.base": set[str](), "core.middle": {"core.base"}, "tests/unit/test_base.py": {"core.base"},
        "tests/unit/test_slow.py": {"core.base"}, "tests/unit/test_middle.py": {"core.middle"},
        "tests/unit/test_other.py": set(), "tests/unit/test_long.py": {"core.base"},
    }  # fmt: skip
    shown = [features.Shown(file, ("box",) if "other" in file else (), "long" not in file)
             for file in imports if file.startswith("tests/")]  # fmt: skip
    times = {"tests/unit/test_base.py": 1.0, "tests/unit/test_middle.py": 2.0, "tests/unit/test_slow.py": 90.0}
    found = changed.choose(["core/core/base.py"], imports, shown, set(), times, 50.0)
    assert found.chosen == ["tests/unit/test_base.py", "tests/unit/test_middle.py"]
    assert found.left == ["tests/unit/test_slow.py"]
    own = changed.choose(["tests/unit/test_slow.py"], imports, shown, set(), times, 50.0)
    assert own.chosen == ["tests/unit/test_slow.py"], "what was changed itself runs however long it takes"
    assert changed.choose([], imports, shown, {"box"}, times).chosen == ["tests/unit/test_other.py"]


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    return changed.read_imports()


@pytest.fixture(scope="module")
def shown() -> list[features.Shown]:
    return features.read_shown()


def test_what_a_change_touches_is_read_from_imports_and_features(imports: dict[str, set[str]]) -> None:
    decide = ["platform/rdukit_platform/scheduler/decide.py"]
    distances = changed.find_distances(map(changed.module_of, decide), imports)
    assert distances["rdukit_platform.scheduler.decide"] == 0
    assert distances["rdukit_platform.scheduler.loop"] == 1
    assert "rdukit_compiler.pipeline" not in distances
    files = [
        "modelboxes/rdukit_modelbox/boxes/gan/modelbox.yaml",
        "docs/sweeps.md",
        "platform/rdukit_platform/api/audit.py",
    ]
    assert changed.find_touched_features(files) == {"gan", "sweeps", "audit"}


@pytest.mark.parametrize(
    ("file", "loader", "test"),
    [
        ("platform/rdukit_platform/db/migrations/versions/r0018_quotas.py", "rdukit_platform.db.migrate",
         "tests/integration/test_migrations.py"),
        ("zoo/rdukit_zoo/vision/gan.py", "rdukit_zoo.registry", "tests/conformance/test_zoo_parity.py"),
        ("compiler/rdukit_compiler/rules/mlp.yaml", "rdukit_compiler.rules",
         "tests/unit/compiler/test_rules_models.py"),
        ("runtime/rdukit_node/faults/migrations/0001.sql", "rdukit_node.faults.schema",
         "tests/unit/runtime/test_fault_schema.py"),
        ("platform/rdukit_platform/backup/write.py", None, "tests/integration/test_backup.py"),
    ],
)  # fmt: skip
def test_a_file_that_is_loaded_by_its_name_or_behind_a_command_has_its_tests(
    file: str, loader: str | None, test: str, imports: dict[str, set[str]], shown: list[features.Shown]
) -> None:
    loaders = changed.find_loaders([file], imports, shown)
    assert loaders == ({loader} if loader else set())
    entries = changed.read_entries()
    found = changed.choose([file], imports, shown, set(), {}, entries=entries, loaders=loaders)
    assert test in found.chosen


def test_a_report_warns_of_a_layer_over_its_share_and_of_new_slow_cases() -> None:
    share = plan.LAYERS[0].share_core_s
    cases = [records.Case(f"tests/integration/test_x.py::test_{n}", call_s=3.0) for n in range(plan.CASES_OVER + 1)]
    lines = records.report(cases, {"integration": share + 1.0}, True)
    assert [line.split(":")[0] for line in lines if "warning" in line] == ["warning", "warning"]
    assert not [line for line in records.report(cases, {"integration": share + 1.0}, False) if "warning" in line]
    assert not [line for line in records.report(cases[1:], {"integration": share - 1.0}, True) if "warning" in line]
