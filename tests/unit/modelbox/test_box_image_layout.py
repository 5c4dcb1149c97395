"""OCI layouts: the same input gives the same bytes, a crash or a change is noticed, names from outside stay inside."""

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument, NotFound
from rdukit_modelbox.image.build import build_layout, parse_base
from rdukit_modelbox.image.config import empty_config, with_layers
from rdukit_modelbox.image.layer import LayerEntry, unpack_file, write_layer
from rdukit_modelbox.image.layout import BASE_REFERENCE, ImageLayout, manifest_blob
from rdukit_modelbox.image.media import (
    CONFIG_TYPE,
    MANIFEST_TYPE,
    Descriptor,
    build_seconds,
    build_time,
    compact_json,
    machine_name,
)
from rdukit_modelbox.image.push import find_credentials, parse_target, push_image
from rdukit_modelbox.image.verify import verify_layout
from support import shows

pytestmark = shows("images")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A layout with one small image named ``base``."""
    import platform

    layout = ImageLayout.create(tmp_path / "base")
    layer = layout.add_layer([LayerEntry("/bin/tini", data=b"tini", is_executable=True)], 0, is_compressed=True)
    config = with_layers(empty_config(machine_name(platform.machine()), "/bin", True), [layer.diff_id], ["base"], 0)
    config_blob = layout.add_blob(CONFIG_TYPE, compact_json(config))
    image = layout.add_blob(MANIFEST_TYPE, manifest_blob(config_blob, [layer.descriptor], {}))
    layout.set_reference("base", image, {})
    return tmp_path / "base"


def files_of(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_two_builds_of_a_box_are_equal_to_the_byte(base: Path, tmp_path: Path) -> None:
    one = build_layout("logreg", tmp_path / "one", f"oci:{base}:base")
    two = build_layout("logreg", tmp_path / "two", f"oci:{base}:base")
    assert one.digest == two.digest
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert one.added_bytes < 64 << 10


def test_the_images_time_is_source_date_epoch(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    built = build_layout("logreg", tmp_path / "one", f"oci:{base}:base")
    layout = ImageLayout.open(tmp_path / "one")
    manifest, config = layout.read_image(layout.find("logreg"))
    assert config["created"] == "2023-11-14T22:13:20Z"
    with tarfile.open(layout.blob_file(manifest["layers"][-1]["digest"])) as tar:
        assert {member.mtime for member in tar} == {1700000000}
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert build_layout("logreg", tmp_path / "two", f"oci:{base}:base").digest != built.digest


@pytest.mark.parametrize("text", ["", "-1", "1e9", "yesterday"])
def test_an_illegal_source_date_epoch_is_told(text: str) -> None:
    with pytest.raises(InvalidArgument, match="SOURCE_DATE_EPOCH"):
        build_seconds({"SOURCE_DATE_EPOCH": text})
    assert build_time(build_seconds({})) == "1970-01-01T00:00:00Z"


def test_a_box_becomes_an_image_with_its_command_user_and_labels(base: Path, tmp_path: Path) -> None:
    build_layout("logreg", tmp_path / "one", f"oci:{base}", reference="digits")
    layout = ImageLayout.open(tmp_path / "one")
    manifest, config = layout.read_image(layout.find("digits"))
    assert len(manifest["layers"]) == 2
    inner = config["config"]
    assert inner["User"] == "10001:10001"
    assert inner["Entrypoint"] == ["tini", "-s", "--"]
    assert inner["Cmd"][:4] == ["rdukit", "box", "run", "/opt/rdukit/box/modelbox.yaml"]
    assert inner["Labels"]["dev.rdukit.box.model"] == "logreg"
    assert inner["Healthcheck"]["Test"][0] == "CMD"
    assert "PATH=/bin" in inner["Env"]
    assert manifest["annotations"]["dev.rdukit.box.verbs"] == "preprocess,compile,train,infer,evaluate"
    with tarfile.open(layout.blob_file(manifest["layers"][1]["digest"])) as tar:
        members = {member.name: member for member in tar}
    assert members["var/lib/rdukit"].uid == 10001 and members["var/lib/rdukit"].mode == 0o700
    assert members["opt/rdukit/box/modelbox.yaml"].uid == 0 and members["opt/rdukit/box/modelbox.yaml"].mode == 0o644
    assert {"opt/rdukit/box/sbom.cdx.json", "opt", "opt/rdukit"} <= set(members)


def test_a_second_box_in_the_same_layout_keeps_the_first(base: Path) -> None:
    build_layout("logreg", base, f"oci:{base}:base")
    build_layout("ffn", base, f"oci:{base}:base")
    assert verify_layout(base).images == ("base", "ffn", "logreg")


def test_a_layout_is_verified_to_the_last_blob(base: Path, tmp_path: Path) -> None:
    build_layout("logreg", tmp_path / "one", f"oci:{base}:base")
    verified = verify_layout(tmp_path / "one")
    assert (verified.images, verified.blobs) == (("logreg",), 4)
    for name in list(files_of(tmp_path / "one")):
        if name.startswith("blobs/"):
            path = tmp_path / "one" / name
            kept = path.read_bytes()
            path.unlink()
            path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
            with pytest.raises(InvalidArgument, match="damaged"):
                verify_layout(tmp_path / "one")
            path.write_bytes(kept)
    verify_layout(tmp_path / "one")


def test_a_layer_that_is_not_what_the_configuration_says_is_told(base: Path) -> None:
    layout = ImageLayout.open(base)
    manifest, config = layout.read_image(layout.find("base"))
    config["rootfs"]["diff_ids"] = ["sha256:" + "0" * 64]
    config_blob = layout.add_blob(CONFIG_TYPE, compact_json(config))
    layers = [Descriptor.from_json(layer) for layer in manifest["layers"]]
    layout.set_reference("base", layout.add_blob(MANIFEST_TYPE, manifest_blob(config_blob, layers, {})), {})
    with pytest.raises(
        InvalidArgument,
        match=r"unpacks to sha256:[0-9a-f]{64}, but the configuration states "
        r"sha256:0000",
    ):
        verify_layout(base)


def test_a_base_for_another_processor_is_refused(base: Path, tmp_path: Path) -> None:
    layout = ImageLayout.open(base)
    manifest, config = layout.read_image(layout.find("base"))
    config_blob = layout.add_blob(CONFIG_TYPE, compact_json(config | {"architecture": "s390x"}))
    layers = [Descriptor.from_json(layer) for layer in manifest["layers"]]
    layout.set_reference("base", layout.add_blob(MANIFEST_TYPE, manifest_blob(config_blob, layers, {})), {})
    with pytest.raises(InvalidArgument, match="linux/s390x; expected linux/"):
        build_layout("logreg", tmp_path / "one", f"oci:{base}:base")


@pytest.mark.parametrize("written", ["debian", "docker:debian", "oci:", "oci::name"])
def test_a_base_that_cannot_be_had_names_the_ways_to_one(written: str) -> None:
    with pytest.raises(InvalidArgument, match="expected 'installed'"):
        parse_base(written)


def test_a_layout_that_is_none_is_told(base: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="not an OCI layout"):
        build_layout("logreg", tmp_path / "one", f"oci:{tmp_path / 'nowhere'}")
    with pytest.raises(NotFound, match="there: base"):
        build_layout("logreg", tmp_path / "two", f"oci:{base}:other")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidArgument, match="not empty"):
        build_layout("logreg", tmp_path / "full", f"oci:{base}:base")


@pytest.mark.parametrize("path", ["relative", "/a/../b", "/", "/a//b", "/./a"])
def test_a_path_that_leaves_the_layer_is_refused(path: str) -> None:
    with pytest.raises(InvalidArgument, match="absolute"):
        write_layer([LayerEntry(path, data=b"")], io.BytesIO(), 0)


def test_the_order_of_the_entries_does_not_matter_to_a_layer() -> None:
    entries = [
        LayerEntry("/b/c", data=b"1"),
        LayerEntry("/a", target="b/c"),
        LayerEntry("/b", mode=0o700),
        LayerEntry("/d", data=b""),
    ]
    one, two = io.BytesIO(), io.BytesIO()
    write_layer(entries, one, 0)
    write_layer(reversed(entries), two, 0)
    assert one.getvalue() == two.getvalue()
    assert unpack_file(io.BytesIO(one.getvalue()), "/b/c") == b"1"
    assert unpack_file(io.BytesIO(one.getvalue()), "/nowhere") is None
    with pytest.raises(InvalidArgument, match="twice"):
        write_layer([LayerEntry("/a", data=b"1"), LayerEntry("/a", data=b"2")], io.BytesIO(), 0)


def test_a_digest_never_becomes_another_path(base: Path) -> None:
    layout = ImageLayout.open(base)
    for digest in ("sha256:../../../etc/passwd", "md5:" + "0" * 32, "sha256:" + "A" * 64):
        with pytest.raises(InvalidArgument, match="sha256"):
            layout.blob_file(digest)
        with pytest.raises(InvalidArgument, match="sha256"):
            Descriptor.from_json({"digest": digest, "size": 1})


def test_an_image_is_copied_to_another_layout_with_what_it_needs(base: Path, tmp_path: Path) -> None:
    build_layout("logreg", base, f"oci:{base}:base")
    first = push_image(base, "logreg", f"oci:{tmp_path / 'other'}:digits")
    assert (first.sent, first.known) == (4, 0)
    assert verify_layout(tmp_path / "other").images == ("digits",)
    assert push_image(base, "logreg", f"oci:{tmp_path / 'other'}:digits").sent == 0


@pytest.mark.parametrize(
    "to", ["registry/name", "docker://host", "docker://host/Name", "docker://h/n:a b", "http://x/y"]
)
def test_an_illegal_target_is_told(to: str) -> None:
    with pytest.raises(InvalidArgument, match="docker://HOST"):
        parse_target(to)


def test_a_registrys_target_and_credentials_are_read() -> None:
    target = parse_target("docker://registry.example:5000/boxes/logreg:1.2")
    assert (target.host, target.repository, target.tag) == ("registry.example:5000", "boxes/logreg", "1.2")
    assert parse_target("docker://h/n").tag == "latest"
    config = {"auths": {"registry.example:5000": {"username": "a", "password": "b"}, "https://h": {"auth": "eA=="}}}
    assert find_credentials("registry.example:5000", config) == "YTpi"
    assert find_credentials("h", config) == "eA=="
    assert find_credentials("elsewhere", config) is None


def test_without_a_name_the_only_box_beside_its_base_is_meant(tmp_path: Path) -> None:
    layout = ImageLayout.create(tmp_path)
    with pytest.raises(NotFound, match="no image"):
        layout.find()
    config = layout.add_blob(CONFIG_TYPE, compact_json({}))
    for name in (BASE_REFERENCE, "logreg"):
        layout.set_reference(name, layout.add_blob(MANIFEST_TYPE, manifest_blob(config, [], {"name": name})), {})
        assert layout.find() == layout.references()[name]
    layout.set_reference("mlp", layout.add_blob(MANIFEST_TYPE, manifest_blob(config, [], {"name": "mlp"})), {})
    with pytest.raises(NotFound, match="choose one with --tag; there: logreg, mlp, rdukit-base"):
        layout.find()
