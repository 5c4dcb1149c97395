"""Paths in requests stay under the mounts."""

from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument, NotFound
from rdukit_modelbox.box import Box, Verb, find_box_file, load_box
from rdukit_modelbox.mounts import Mounts, resolve_inputs


@pytest.fixture
def box() -> Box:
    return load_box(find_box_file("logreg"))


@pytest.fixture
def mounts(tmp_path: Path) -> Mounts:
    for name in ("state", "data"):
        (tmp_path / name).mkdir()
    return Mounts([tmp_path / "state", tmp_path / "data"])


def test_paths_and_file_uris_under_a_mount_are_taken(mounts: Mounts, tmp_path: Path) -> None:
    assert mounts.resolve(str(tmp_path / "data" / "x"), "input") == tmp_path / "data" / "x"
    assert mounts.resolve(f"file://{tmp_path}/data/a%20b", "input") == tmp_path / "data" / "a b"
    assert mounts.resolve("out", "output") == tmp_path / "state" / "out"


@pytest.mark.parametrize("text", ["/etc/passwd", "../other", "file:///etc/passwd", "s3://bucket/x", "", "a\0b"])
def test_paths_elsewhere_are_refused(mounts: Mounts, text: str) -> None:
    with pytest.raises(InvalidArgument):
        mounts.resolve(text, "input")


def test_a_link_that_leads_out_is_refused(mounts: Mounts, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidArgument, match="outside"):
        mounts.resolve(str(tmp_path / "data" / "link" / "key"), "input")


def test_inputs_must_be_known_complete_there_and_of_the_right_kind(mounts: Mounts, box: Box, tmp_path: Path) -> None:
    pef, dataset = tmp_path / "data" / "m.pef", tmp_path / "data" / "set"
    pef.write_bytes(b"x")
    dataset.mkdir()
    good = {"pef": str(pef), "dataset": str(dataset)}
    assert resolve_inputs(mounts, box, Verb.TRAIN, good) == {"pef": pef, "dataset": dataset}
    with pytest.raises(InvalidArgument, match="no input 'weights'; legal: pef, dataset, checkpoint"):
        resolve_inputs(mounts, box, Verb.TRAIN, good | {"weights": "x"})
    with pytest.raises(InvalidArgument, match="needs the inputs dataset"):
        resolve_inputs(mounts, box, Verb.TRAIN, {"pef": str(pef)})
    with pytest.raises(NotFound, match="nothing at"):
        resolve_inputs(mounts, box, Verb.TRAIN, good | {"pef": str(tmp_path / "data" / "none")})
    with pytest.raises(InvalidArgument, match="must be a file"):
        resolve_inputs(mounts, box, Verb.TRAIN, good | {"pef": str(dataset)})


def test_a_mount_must_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="not a folder"):
        Mounts([tmp_path / "none"])
