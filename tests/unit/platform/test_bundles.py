"""Bundles of an endpoint: which artifacts they name, what their check says, and whose tokens an answer is."""

from pathlib import Path
from typing import Any

import pytest

from rdukit.errors import InvalidArgument, NotFound, Unavailable
from rdukit_platform.artifacts.needs import read_needs
from rdukit_platform.artifacts.picture import graph_of
from rdukit_platform.artifacts.service import get_artifact, record_artifact
from rdukit_platform.artifacts.stores.folder import FolderStore
from rdukit_platform.catalog.model import Selector
from rdukit_platform.db.models import EndpointReplicaRow
from rdukit_platform.endpoints.bundles import bring_bundle, find_references, parts_of, read_bundle, read_checked
from rdukit_platform.endpoints.schemas import EndpointRequest, UpdateRequest, model_of
from rdukit_platform.endpoints.service import (
    ServedParts,
    create_endpoint,
    delete_endpoint,
    resolve_serving,
    revisions_of,
)
from rdukit_platform.endpoints.states import ReplicaState
from rdukit_platform.endpoints.usage import Use, add_use, read_model, read_uses
from rdukit_platform.tenants.service import create_tenant
from support import shows
from support.platform.processes import counter_boxes, fresh_database

pytestmark = shows("bundles", "endpoints")

TOLD: dict[str, Any] = {
    "name": "two", "box": "counter", "tiles": 2,
    "files": [
        {"at": "configurations.0.pef", "file": "artifact://art-pef"},
        {"at": "experts.0.checkpoint", "file": "artifact://art-weights/poet"},
        {"at": "experts.1.checkpoint", "file": "artifact://art-weights/coder"},
    ],
    "models": [
        {"name": "poet", "kind": "expert", "aliases": [], "adapter_of": None},
        {"name": "clerk", "kind": "adapter", "aliases": ["office"], "adapter_of": "poet"},
    ],
}  # fmt: skip


def test_artifacts_are_found_with_the_paths_in_them() -> None:
    text = "pef: artifact://art-1\nfile: 'artifact://art-2/a/b.safetensors', artifact://art-2 artifact:///etc/passwd"
    assert find_references(text) == {"art-1": {""}, "art-2": {"a/b.safetensors", ""}}
    assert find_references("artifact://../art-1 artifact:/art-1 art-1") == {}


def test_what_the_check_says_becomes_parts_and_models() -> None:
    found = read_checked("art-b", TOLD)
    assert (found.pef_id, found.tiles, found.box) == ("art-pef", 2, "counter")
    assert found.parts["experts.1.checkpoint"] == "art-weights"
    for wrong in ({}, {**TOLD, "files": []}, {**TOLD, "tiles": "2"}, {**TOLD, "files": [{"at": "x", "file": "y"}]}):
        with pytest.raises(Unavailable, match="returned a malformed report"):
            read_checked("art-b", wrong)


@pytest.mark.parametrize(
    ("head", "tail", "model"),
    [
        (b'{"model": "poet", "usage": {}}', b"", "poet"),
        (b'{"model_name":"clerk"}', b"", "clerk"),
        (b"", b'data: {"model":"poet"}\n\ndata: [DONE]', "poet"),
        (b'event: message_start\ndata: {"message":{"model":"poet"}}', b'data: {"type":"message_stop"}', "poet"),
        (b'{"model": "of-its-own"}', b"", ""),
        (b"\xff\xfe", b"", ""),
    ],
)
def test_only_a_name_of_the_bundle_is_counted(head: bytes, tail: bytes, model: str) -> None:
    assert read_model(head, tail, {"poet", "clerk"}) == model


def test_lineage_without_a_job_is_drawn_from_the_part_to_the_bundle() -> None:
    artifacts = [{"id": each, "kind": "x", "name": each} for each in ("art-b", "art-pef")]
    links = [{"child": "art-b", "parent": "art-pef", "slot": "configurations.0.pef", "job_id": None}]
    nodes, edges = graph_of(artifacts, links, [])
    assert len(nodes) == 2
    assert [(edge.source, edge.target, edge.label) for edge in edges] == [("art-pef", "art-b", "configurations.0.pef")]


def test_a_revision_keeps_its_bundle_and_all_that_it_names(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "artifacts")
    (tmp_path / "weights" / "poet").mkdir(parents=True)
    (tmp_path / "weights" / "poet" / "w").write_text("w")
    (tmp_path / "bundle.yaml").write_text("pef: artifact://art-pef")
    contents = {
        "art-pef": ("bundle.yaml", "pef"),
        "art-weights": ("weights", "checkpoint"),
        "art-b": ("bundle.yaml", "bundle"),
    }
    bundle = read_checked("art-b", TOLD)
    with fresh_database(tmp_path) as database, database.write() as session:
        tenant, other = (create_tenant(session, name, 0.0).id for name in ("lab", "other"))
        for artifact_id, (name, kind) in contents.items():
            record_artifact(session, tenant, name, kind, store.add_path(tmp_path / name), 1.0, artifact_id=artifact_id)
        assert read_bundle(session, store, tenant, "art-b") == "pef: artifact://art-pef"
        for owner, artifact_id, error in ((other, "art-b", NotFound), (tenant, "art-pef", InvalidArgument)):
            with pytest.raises(error):
                read_bundle(session, store, owner, artifact_id)
        request = EndpointRequest(name="chat", bundle="art-b")
        serving = resolve_serving(session, counter_boxes(), store, tenant, request, bundle)
        assert (serving.box, serving.tiles, serving.pef_id) == (Selector("counter", None), 2, "art-pef")
        with pytest.raises(InvalidArgument, match="leave out expert, pef and checkpoint"):
            resolve_serving(
                session, counter_boxes(), store, tenant, request.model_copy(update={"pef": "art-pef"}), bundle
            )
        rows = [create_endpoint(session, tenant, name, serving, 1, 2.0) for name in ("chat", "again")]
        row = rows[-1]
        assert {need for needs in read_needs(session, tenant).values() for need in map(str, needs)} == {
            "endpoint chat, revision 1", "endpoint again, revision 1",
        }  # fmt: skip
        assert set(read_needs(session, tenant)) == set(contents)
        assert len(parts_of(session, "art-b")) == 3, "written down once"
        assert model_of(revisions_of(session, row)[0]) == "poet"
        for _ in range(2):
            add_use(session, row.id, 1, 1, Use(1, completion_tokens=3), "poet")
        add_use(session, row.id, 1, 1, Use(1, 1))
        assert read_uses(session, [row.id])[row.id] == {1: {"": Use(1, 1), "poet": Use(2, completion_tokens=6)}}
        parts = [get_artifact(session, tenant, each) for each in ("art-pef", "art-weights")]
        file = bring_bundle(store, get_artifact(session, tenant, "art-b"), parts, tmp_path / "in")
        assert file.read_text() == (tmp_path / "in" / "art-pef").read_text()
        assert (tmp_path / "in" / "art-weights" / "poet" / "w").read_text() == "w"
        get_artifact(session, tenant, "art-weights").deleted_at = 3.0
        with pytest.raises(NotFound, match="was deleted"):
            create_endpoint(session, tenant, "late", ServedParts(serving.box, "art-pef", None, None, 2, bundle), 1, 4.0)
        session.add(
            EndpointReplicaRow(
                id="rep-1", endpoint_id=row.id, revision=1, state=str(ReplicaState.DRAINING), token="t", created_at=4.0
            )
        )
        for each in rows:
            delete_endpoint(each, 5.0)
        session.flush()
        assert {str(need) for needs in read_needs(session, tenant).values() for need in needs} == {
            "endpoint again, revision 1"
        }, "it drains"
        session.get_one(EndpointReplicaRow, "rep-1").ended_at = 6.0
        session.flush()
        assert read_needs(session, tenant) == {}


def test_a_bundle_alone_is_a_new_revision() -> None:
    assert not UpdateRequest(bundle="art-b").names_nothing()
    assert UpdateRequest(replicas=2).names_nothing()
