"""Settings: file < environment < argument, and a clear word about anything that is not valid."""

from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit.settings import CORE_SETTINGS, HOME, LOG_LEVEL, Setting, home_folder, parse_bool, resolve, variables_of
from support import shows

pytestmark = shows("settings")

SIZE = Setting("queue.size", 10, "How many.", int)
COLOUR = Setting("paint.colour", "red", "Which.", str, legal=("red", "green"))


def test_the_default_holds_when_nothing_is_said(tmp_path: Path) -> None:
    assert resolve(SIZE, environ={"RDUKIT_HOME": str(tmp_path)}) == 10


def test_the_file_beats_the_default_the_environment_the_file_and_the_argument_all(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("queue: {size: 20}\n")
    environ = {"RDUKIT_HOME": str(tmp_path)}
    assert resolve(SIZE, environ=environ) == 20
    environ["RDUKIT_QUEUE_SIZE"] = "30"
    assert resolve(SIZE, environ=environ) == 30
    assert resolve(SIZE, 40, environ) == 40


def test_a_file_that_has_changed_counts_at_the_next_use(tmp_path: Path) -> None:
    for size in (20, 30, 20):
        (tmp_path / "config.yaml").write_text(f"queue: {{size: {size}}}\n")
        assert resolve(SIZE, environ={"RDUKIT_HOME": str(tmp_path)}) == size


def test_a_named_settings_file_replaces_the_one_in_the_home_folder(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("queue: {size: 20}\n")
    other = tmp_path / "other.yaml"
    other.write_text("queue:\n  size: 25\n")
    assert resolve(SIZE, environ={"RDUKIT_HOME": str(tmp_path), "RDUKIT_CONFIG": str(other)}) == 25


def test_a_named_settings_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="does not exist; unset \\$RDUKIT_CONFIG"):
        resolve(SIZE, environ={"RDUKIT_HOME": str(tmp_path), "RDUKIT_CONFIG": str(tmp_path / "none.yaml")})


def test_a_settings_file_that_is_not_yaml_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("queue: [size\n")
    with pytest.raises(InvalidArgument, match="not valid YAML"):
        resolve(SIZE, environ={"RDUKIT_HOME": str(tmp_path)})


@pytest.mark.parametrize("text", ["queue: 3\n", "queue: {other: 1}\n", "- a\n", ""])
def test_a_settings_file_without_the_setting_leaves_the_default(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert resolve(SIZE, environ={"RDUKIT_HOME": str(tmp_path)}) == 10


def test_text_that_does_not_parse_names_the_variable_and_the_value(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"\$RDUKIT_QUEUE_SIZE: 'many' is not valid for queue.size"):
        resolve(SIZE, environ={"RDUKIT_HOME": str(tmp_path), "RDUKIT_QUEUE_SIZE": "many"})


def test_a_value_that_is_not_legal_is_refused_with_the_legal_ones(tmp_path: Path) -> None:
    environ = {"RDUKIT_HOME": str(tmp_path)}
    assert resolve(COLOUR, "green", environ) == "green"
    for call in (
        lambda: resolve(COLOUR, "blue", environ),
        lambda: resolve(COLOUR, environ=environ | {"RDUKIT_PAINT_COLOUR": "blue"}),
    ):
        with pytest.raises(InvalidArgument, match=r"'blue' is not valid for paint.colour; expected red, green"):
            call()


def test_the_vendors_variable_is_read_where_ours_is_not_set(tmp_path: Path) -> None:
    wait = Setting("wait_s", 5.0, "How long.", float, also="CCL_TIMEOUT")
    environ = {"RDUKIT_HOME": str(tmp_path), "CCL_TIMEOUT": "30"}
    assert resolve(wait, environ=environ) == 30
    (tmp_path / "config.yaml").write_text("wait_s: 20\n")
    assert resolve(wait, environ=environ) == 30
    assert resolve(wait, environ={**environ, "RDUKIT_WAIT_S": "40"}) == 40
    with pytest.raises(InvalidArgument, match=r"\$CCL_TIMEOUT: 'long' is not valid for wait_s"):
        resolve(wait, environ={**environ, "CCL_TIMEOUT": "long"})


def test_home_is_an_absolute_path_without_a_tilde() -> None:
    assert home_folder({}) == Path("~/.rdukit").expanduser()
    assert home_folder({"RDUKIT_HOME": "here"}) == Path.cwd() / "here"


@pytest.mark.parametrize(("text", "value"), [("1", True), ("Yes", True), (" on ", True), ("0", False), ("", False)])
def test_booleans_are_read_in_the_usual_spellings(text: str, value: bool) -> None:
    assert parse_bool(text) is value


def test_another_spelling_of_a_boolean_is_refused() -> None:
    with pytest.raises(ValueError, match="neither true nor false"):
        parse_bool("maybe")


def test_core_settings_have_help_and_their_variables() -> None:
    assert all(setting.help.endswith(".") for setting in CORE_SETTINGS)
    assert HOME.variable == "RDUKIT_HOME"
    assert LOG_LEVEL.variable == "RDUKIT_LOG_LEVEL"
    assert len({setting.name for setting in CORE_SETTINGS}) == len(CORE_SETTINGS)


def test_variables_for_another_process_come_from_the_environment_or_the_settings_file(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("engine: {threads: 3}\nkernels: portable\ntoken: secret\n")
    environ = {"RDUKIT_HOME": str(tmp_path), "RDUKIT_KERNELS": "native", "OTHER": "x"}
    names = ["RDUKIT_ENGINE_THREADS", "RDUKIT_KERNELS", "RDUKIT_CHECK"]
    assert variables_of(names, environ) == {"RDUKIT_ENGINE_THREADS": "3", "RDUKIT_KERNELS": "native"}
