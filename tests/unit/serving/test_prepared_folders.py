"""What was prepared from a folder is found again, as long as the folder and the options are the same."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from rdukit_serving.models.prepare_folder import PREPARED, PreparedModel, all_to_build, find_prepared, prepared_place
from support import shows

pytestmark = shows("huggingface")


def prepare(folder: Path, place: Path, native: str = "native.pef") -> PreparedModel:
    """Write what the program that compiles would leave of a folder."""
    (folder / "parts").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "parts" / "chat.jinja").write_text("{{ messages }}")
    made = prepared_place(folder, place, None, "auto")
    made.mkdir(parents=True)
    (made / "model.pef").touch()
    found = PreparedModel("llama", "llama", str(made / "model.pef"), str(made), str(made / native) if native else "")
    (made / PREPARED).write_text(json.dumps(asdict(found)))
    return found


@pytest.mark.parametrize("file", ["config.json", "parts/chat.jinja", "new.safetensors"])
def test_a_folder_with_another_file_is_prepared_again(file: str, tmp_path: Path) -> None:
    folder, place = tmp_path / "folder", tmp_path / "place"
    made = prepare(folder, place)
    assert find_prepared(prepared_place(folder, place, None, "auto")) == made
    (folder / file).write_text("something longer than before")
    assert find_prepared(prepared_place(folder, place, None, "auto")) is None


def test_other_options_and_another_setting_of_kernels_are_prepared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, place = tmp_path / "folder", tmp_path / "place"
    made = prepare(folder, place)
    assert find_prepared(prepared_place(folder, place, 64, "auto")) is None
    assert find_prepared(prepared_place(folder, place, None, "f32")) is None
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    assert find_prepared(prepared_place(folder, place, None, "auto")) is None
    monkeypatch.delenv("RDUKIT_KERNELS")
    assert find_prepared(prepared_place(folder, place, None, "auto")) == made


def test_a_removed_or_damaged_result_is_prepared_again(tmp_path: Path) -> None:
    folder, place = tmp_path / "folder", tmp_path / "place"
    made = prepare(folder, place)
    Path(made.pef).unlink()
    assert find_prepared(prepared_place(folder, place, None, "auto")) is None
    Path(made.pef).touch()
    (Path(made.checkpoint) / PREPARED).write_text('{"box": "llama"')
    assert find_prepared(prepared_place(folder, place, None, "auto")) is None


def test_native_kernels_are_built_where_they_are_missing(tmp_path: Path) -> None:
    made = prepare(tmp_path / "folder", tmp_path / "place")
    assert made.best_pef == Path(made.pef)
    assert all_to_build(made, made) == {Path(made.pef): Path(made.native_pef)}
    Path(made.native_pef).touch()
    assert made.best_pef == Path(made.native_pef)
    assert not all_to_build(made)


def test_a_pef_that_gets_no_others_is_served_as_it_is(tmp_path: Path) -> None:
    made = prepare(tmp_path / "folder", tmp_path / "place", native="")
    assert made.best_pef == Path(made.pef)
    assert not all_to_build(made)
