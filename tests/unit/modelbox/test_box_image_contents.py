"""What a box brings into its image, and what never gets there."""

import io
import json
import re
import tarfile
from pathlib import Path

import pytest

from rdukit.box.image import MAX_BOX_BYTES, unpack_box
from rdukit.errors import InvalidArgument, Unavailable
from rdukit_modelbox.image.contents import make_dockerfile, read_contents
from rdukit_modelbox.image.engines import find_engine, write_context
from rdukit_modelbox.image.sbom import SbomComponent, installed_components, make_sbom
from support import shows

pytestmark = shows("images")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "box"
    made.mkdir()
    (made / "modelbox.yaml").write_bytes(read_contents("logreg").files["modelbox.yaml"])
    return made


def test_a_box_brings_its_yaml_code_and_card(folder: Path) -> None:
    (folder / "model.py").write_text("VALUE = 1\n")
    (folder / "LICENSE").write_text("free\n")
    (folder / "cards").mkdir()
    (folder / "cards" / "MODEL_CARD.md").write_text("# Card\n")
    for left_out in ("__pycache__/model.pyc", ".git/config.md", "photo.png"):
        (folder / left_out).parent.mkdir(exist_ok=True)
        (folder / left_out).write_text("no")
    contents = read_contents(str(folder))
    assert sorted(contents.files) == ["LICENSE", "cards/MODEL_CARD.md", "model.py", "modelbox.yaml"]
    assert [entry.path for entry in contents.entries()][-1] == "/var/lib/rdukit"


@pytest.mark.parametrize("name", ["model.pef", "step-1.safetensors", "old.PT", "data/train.npz", "weights.bin"])
def test_an_artifact_in_a_boxs_folder_is_refused(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"weights")
    with pytest.raises(InvalidArgument, match="a box mounts or fetches"):
        read_contents(str(folder))


def test_a_link_and_a_large_file_are_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "big.txt").write_bytes(b"x" * (5 << 20))
    with pytest.raises(InvalidArgument, match="expected up to"):
        read_contents(str(folder))
    (folder / "big.txt").unlink()
    (folder / "secret.md").symlink_to("/etc/passwd")
    with pytest.raises(InvalidArgument, match="link"):
        read_contents(str(folder))


def test_the_dockerfile_uses_nothing_that_older_builders_lack() -> None:
    text = make_dockerfile(read_contents("logreg"), "rdukit/modelbox:latest")
    lines = text.splitlines()
    assert lines[0] == "ARG BASE_IMAGE=rdukit/modelbox:latest"
    assert "FROM ${BASE_IMAGE}" in lines and "COPY box /opt/rdukit/box" in lines and "USER 10001:10001" in lines
    assert "# syntax" not in text and "RUN" not in text and "<<" not in text
    assert 'dev.rdukit.box.name="logreg"' in text


def test_a_label_cannot_break_out_of_the_dockerfile(folder: Path) -> None:
    text = (folder / "modelbox.yaml").read_text()
    evil = 'title: "Digits\\" \\n RUN rm -rf / $HOME \\\\"\n'
    (folder / "modelbox.yaml").write_text(re.sub("(?m)^title:.*\n", lambda _: evil, text))
    made = make_dockerfile(read_contents(str(folder)), "base")
    assert not [line for line in made.splitlines() if line.strip().startswith("RUN")]
    assert r"Digits\" RUN rm -rf / \$HOME \\" in made


def test_the_builders_context_has_the_dockerfile_and_the_box(folder: Path, tmp_path: Path) -> None:
    write_context(tmp_path / "context", read_contents(str(folder)), "base")
    names = sorted(
        p.relative_to(tmp_path / "context").as_posix() for p in (tmp_path / "context").rglob("*") if p.is_file()
    )
    assert names == ["Dockerfile", "box/modelbox.yaml", "box/sbom.cdx.json"]


def test_the_bill_of_materials_is_the_same_every_time() -> None:
    components = [SbomComponent("b", "2"), SbomComponent("a", "1", "MIT"), SbomComponent("b", "2")]
    one = make_sbom({"name": "box", "version": "1"}, components)
    assert one == make_sbom({"name": "box", "version": "1"}, reversed(components))
    value = json.loads(one)
    assert (value["bomFormat"], value["specVersion"]) == ("CycloneDX", "1.5")
    assert [c["purl"] for c in value["components"]] == ["pkg:pypi/a@1", "pkg:pypi/b@2"]
    assert {"rdukit", "torch"} <= {component.name for component in installed_components()}


def test_an_engine_that_is_unknown_or_absent_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="expected auto, none, docker, podman, buildah"):
        find_engine("rkt")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match=r"docker: not installed.*pass --output FOLDER"):
        find_engine("auto")


def tar_of(*members: tuple[str, bytes | str]) -> bytes:
    """A tar of files; a text is the target of a link."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return data.getvalue()


def test_a_boxs_folder_comes_out_of_an_image_without_its_links(tmp_path: Path) -> None:
    data = tar_of(("box/modelbox.yaml", b"name: a"), ("box/deep/model.py", b""), ("box/etc", "/etc"))
    unpack_box([data[:700], data[700:]], tmp_path)
    found = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    assert found == ["deep", "deep/model.py", "modelbox.yaml"]
    assert (tmp_path / "modelbox.yaml").read_bytes() == b"name: a"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (tar_of(("box/../../spy", b"")), "leaves its folder"),
        (tar_of(("box/big", b"0" * (2 * MAX_BOX_BYTES))), f"more than the {MAX_BOX_BYTES} bytes"),
        (tar_of(("box/a", b""), ("box/a/b", b"")), "cannot be read"),
        (tar_of(("box/a", b"0" * 4000))[:2000], "cannot be read"),
        (b"no tar" * 200, "cannot be read"),
    ],
)
def test_a_folder_of_an_image_that_is_none_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        unpack_box([data], tmp_path / "box")
    assert [path for path in tmp_path.iterdir() if path.name != "box"] == []
