"""Paths in requests stay under the mounts."""

from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument, NotFound
from rdukit_modelbox.artifacts.mounts import Mounts, mount_points, plan_exchange, resolve_inputs
from rdukit_modelbox.contract.box import Box, Verb, find_box_file, load_box
from support import shows

pytestmark = shows("modelbox", "security")


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
    with pytest.raises(InvalidArgument, match="no input 'weights'; expected pef, dataset, checkpoint"):
        resolve_inputs(mounts, box, Verb.TRAIN, good | {"weights": "x"})
    with pytest.raises(InvalidArgument, match="needs the inputs dataset"):
        resolve_inputs(mounts, box, Verb.TRAIN, {"pef": str(pef)})
    with pytest.raises(NotFound, match="does not exist"):
        resolve_inputs(mounts, box, Verb.TRAIN, good | {"pef": str(tmp_path / "data" / "none")})
    with pytest.raises(InvalidArgument, match="must be a file"):
        resolve_inputs(mounts, box, Verb.TRAIN, good | {"pef": str(dataset)})


def test_a_mount_must_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="not a folder"):
        Mounts([tmp_path / "none"])


def with_slots(**slot: object) -> Box:
    """A box with one verb, whose input ``data`` has the given keys."""
    return Box.model_validate(
        {
            "apiVersion": "rdukit.dev/v1", "name": "mine", "title": "Mine", "description": "A box.", "model": "logreg",
            "compilerVersion": "0.1", "mode": "o3", "target": "sn30", "verbs": ["preprocess"],
            "artifacts": {
                "preprocess": {
                    "inputs": [{"name": "data", "kind": "folder", "help": "D."} | slot],
                    "outputs": [{"name": "dataset", "kind": "folder", "help": "S.", "schemes": ["file"]}],
                }
            },
        }
    )  # fmt: skip


def test_a_uri_gets_the_place_where_its_artifact_will_be(mounts: Mounts, tmp_path: Path) -> None:
    paths = resolve_inputs(mounts, with_slots(), Verb.PREPROCESS, {"data": "s3://models/set/"})
    assert paths["data"].parent == tmp_path / "state" / "artifacts" / "by-uri"
    assert paths == resolve_inputs(mounts, with_slots(), Verb.PREPROCESS, {"data": "s3://models/set/"})
    with pytest.raises(InvalidArgument, match=r"scheme 's3' is not valid; expected file, https"):
        resolve_inputs(mounts, with_slots(schemes=["file", "https"]), Verb.PREPROCESS, {"data": "s3://models/set/"})
    with pytest.raises(InvalidArgument, match="scheme 'ftp' is not valid"):
        resolve_inputs(mounts, with_slots(), Verb.PREPROCESS, {"data": "ftp://host/x"})
    with pytest.raises(InvalidArgument, match="scheme 'file' is not valid"):
        resolve_inputs(mounts, with_slots(schemes=["s3"]), Verb.PREPROCESS, {"data": str(tmp_path / "data")})


def test_outputs_never_go_among_the_fetched_artifacts(mounts: Mounts, tmp_path: Path) -> None:
    assert mounts.resolve_output("run") == tmp_path / "state" / "run"
    for text in ("artifacts", "artifacts/content/x", "x/../artifacts/by-uri"):
        with pytest.raises(InvalidArgument, match="fetched artifacts"):
            mounts.resolve_output(text)


def test_what_lies_at_a_mount_point_need_not_be_named(tmp_path: Path) -> None:
    folder, state = tmp_path / "artifacts", tmp_path / "state"
    (folder / "july").mkdir(parents=True)
    state.mkdir()
    box = with_slots(mount=str(folder))
    mounts = Mounts([state, *mount_points(box)])
    assert resolve_inputs(mounts, box, Verb.PREPROCESS, {}) == {"data": folder}
    assert resolve_inputs(mounts, box, Verb.PREPROCESS, {"data": "july"}) == {"data": folder / "july"}
    file_box = with_slots(mount=str(folder), kind="file")
    (folder / "july").rmdir()
    with pytest.raises(InvalidArgument, match="needs the inputs data"):
        resolve_inputs(mounts, file_box, Verb.PREPROCESS, {})
    (folder / "one.csv").write_text("1\n")
    assert resolve_inputs(mounts, file_box, Verb.PREPROCESS, {}) == {"data": folder / "one.csv"}
    assert mount_points(with_slots(mount=str(tmp_path / "none"))) == []


def test_the_child_is_told_what_to_fetch_to_compare_and_to_upload(mounts: Mounts, tmp_path: Path) -> None:
    digest = "ab" * 32
    plan = plan_exchange(mounts, with_slots(), Verb.PREPROCESS, {"data": f"file:///x#sha256={digest}"})
    assert (plan.digests, plan.remote, plan.kinds) == ({"data": digest}, {}, {"data": "folder"})
    assert plan.roots == (str(tmp_path / "state"), str(tmp_path / "data"))
    remote = plan_exchange(mounts, with_slots(), Verb.PREPROCESS, {"data": "https://host/x.zip"})
    assert remote.remote == {"data": "https://host/x.zip"}
    with pytest.raises(InvalidArgument, match="dataset of mine preprocess cannot go to s3; expected file"):
        plan_exchange(mounts, with_slots(), Verb.PREPROCESS, {}, "s3://models/x/")
    with pytest.raises(InvalidArgument, match="64 hexadecimal digits"):
        plan_exchange(mounts, with_slots(), Verb.PREPROCESS, {"data": "file:///x#sha256=1"})


@pytest.mark.parametrize(
    "given",
    [
        {"dataset": "/etc/passwd", "pef": "here"},
        {"dataset": "a\0b", "pef": "here"},
        {"dataset": "s3://x", "pef": "here"},
        {"pef": "here"},
        {"dataset": "here", "pef": "here"},
        {"dataset": "x" * 300, "pef": "here"},
        {"dataset": "/" + "x/" * 5000, "pef": "here"},
    ],
)
def test_every_refusal_names_its_input(mounts: Mounts, box: Box, given: dict[str, str]) -> None:
    (mounts.folders[0] / "here").write_text("a file")
    with pytest.raises((InvalidArgument, NotFound)) as raised:
        resolve_inputs(mounts, box, Verb.TRAIN, given)
    assert raised.value.detail["input"] == "dataset"


def test_an_output_whose_name_is_too_long_is_refused(mounts: Mounts) -> None:
    with pytest.raises(InvalidArgument, match="output"):
        mounts.resolve_output("/" + "x/" * 5000)
