"""Tiles of endpoints under their tenant's limit, and what they may serve."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from rdukit.errors import InvalidArgument, QuotaExceeded
from rdukit.pef.file import BOX_KEY, write_pef
from rdukit_platform.artifacts.service import record_artifact
from rdukit_platform.artifacts.stores.folder import FolderStore
from rdukit_platform.catalog.model import Selector
from rdukit_platform.console.queries import holder_pages
from rdukit_platform.db.models import EndpointReplicaRow, EndpointRow, NodeRow, TenantRow
from rdukit_platform.endpoints.quota import tiles_for_endpoints
from rdukit_platform.endpoints.schemas import RevisionRequest
from rdukit_platform.endpoints.service import (
    EndpointChange,
    ServedParts,
    change_endpoint,
    create_endpoint,
    delete_endpoint,
    promote_canary,
    resolve_serving,
    roll_back,
)
from rdukit_platform.endpoints.states import ReplicaState
from rdukit_platform.jobs import service
from rdukit_platform.jobs.schemas import JobRequest
from rdukit_platform.jobs.tenant_use import read_served_tiles, read_tenant_uses
from rdukit_platform.tenants.service import create_tenant
from support import shows
from support.pefs.examples import example_kernels, example_pef
from support.platform.processes import counter_boxes, fresh_database

pytestmark = shows("endpoints", "scheduler")


def serving(tiles: int) -> ServedParts:
    return ServedParts(Selector("counter", None), "art-pef", None, None, tiles)


def add_replica(session: Session, endpoint: EndpointRow, number: int, state: ReplicaState) -> None:
    is_over = state is ReplicaState.ENDED
    session.add(
        EndpointReplicaRow(
            id=f"rep-{endpoint.name}-{number}-{state}", endpoint_id=endpoint.id, revision=number, state=str(state),
            token="t", created_at=1.0, ended_at=2.0 if is_over else None,
        )
    )  # fmt: skip
    session.flush()


def test_endpoints_want_no_more_tiles_than_their_tenant_may_have(tmp_path: Path) -> None:
    (tmp_path / "pef").write_text("pef")
    store = FolderStore(tmp_path / "artifacts")
    with fresh_database(tmp_path) as database, database.write() as session:
        tenant = create_tenant(session, "lab", 0.0)
        record_artifact(session, tenant.id, "pef", "pef", store.add_path(tmp_path / "pef"), 1.0, artifact_id="art-pef")
        first = create_endpoint(session, tenant.id, "first", serving(4), 3, 1.0)
        session.get_one(TenantRow, tenant.id).max_tiles = 16
        with pytest.raises(QuotaExceeded, match=r"'second' wants 2 replicas of 4 tiles.*expected at most 1 replicas"):
            create_endpoint(session, tenant.id, "second", serving(4), 2, 2.0)
        second = create_endpoint(session, tenant.id, "second", serving(4), 1, 2.0)
        for change in (EndpointChange(replicas=2), EndpointChange(serving=serving(8))):
            with pytest.raises(QuotaExceeded):
                change_endpoint(session, second, change, 3.0)
        assert (second.replicas, second.revision) == (1, 1)
        # Less is always legal, though the limit may be lower by now; so is an earlier revision that has fewer tiles.
        change_endpoint(session, first, EndpointChange(serving=serving(2)), 4.0)
        session.get_one(TenantRow, tenant.id).max_tiles = 6
        change_endpoint(session, first, EndpointChange(replicas=2), 5.0)
        with pytest.raises(QuotaExceeded):
            roll_back(session, first, 1, 6.0)
        delete_endpoint(second, 7.0)
        change_endpoint(session, first, EndpointChange(replicas=3), 8.0)


def test_tiles_in_use_are_those_of_replicas_that_have_not_ended(tmp_path: Path) -> None:
    (tmp_path / "pef").write_text("pef")
    store = FolderStore(tmp_path / "artifacts")
    with fresh_database(tmp_path) as database, database.write() as session:
        lab, other = (create_tenant(session, name, 0.0) for name in ("lab", "other"))
        for tenant in (lab, other):
            record_artifact(session, tenant.id, "pef", "pef", store.add_path(tmp_path / "pef"), 1.0,
                            artifact_id="art-pef" if tenant is lab else "art-other")  # fmt: skip
        endpoint = create_endpoint(session, lab.id, "chat", serving(4), 2, 1.0)
        change_endpoint(session, endpoint, EndpointChange(serving=serving(8)), 2.0)
        add_replica(session, endpoint, 1, ReplicaState.DRAINING)
        add_replica(session, endpoint, 1, ReplicaState.ENDED)
        add_replica(session, endpoint, 2, ReplicaState.STARTING)
        assert read_served_tiles(session) == {lab.id: 12}
        uses = read_tenant_uses(session, [lab, other])
        assert (uses[lab.id].tiles, uses[other.id].tiles) == (12, 0)


def test_endpoints_may_want_their_tenants_quota_and_what_is_nobodys_own() -> None:
    quotas = {"lab": 16, "guest": None, "shop": 8}
    assert tiles_for_endpoints("guest", dict.fromkeys(quotas), {}, 64) is None, "nobody has a quota"
    assert tiles_for_endpoints("guest", quotas, {}, 0) is None, "no node has told"
    assert tiles_for_endpoints("guest", quotas, {}, 64) == 40
    assert tiles_for_endpoints("lab", quotas, {"guest": 10, "shop": 12}, 64) == 16 + 40 - 10 - 4
    assert tiles_for_endpoints("lab", quotas, {"guest": 60}, 64) == 16, "its own stays its own"


def test_an_endpoint_does_not_borrow_what_another_tenant_may_claim(tmp_path: Path) -> None:
    (tmp_path / "pef").write_text("pef")
    store = FolderStore(tmp_path / "artifacts")
    with fresh_database(tmp_path) as database, database.write() as session:
        lab, guest = (create_tenant(session, name, 0.0) for name in ("lab", "guest"))
        record_artifact(session, guest.id, "pef", "pef", store.add_path(tmp_path / "pef"), 1.0, artifact_id="art-pef")
        capacity = {"tiles": 16, "free_tiles": 16, "free_applications": 8}
        session.add(
            NodeRow(
                name="n", home_id="h", host="h", state="up", labels={}, capacity=capacity, leased=[], report={},
                beats=1, beat_at=0.0, joined_at=0.0, changed_at=0.0,
            )
        )  # fmt: skip
        chat = create_endpoint(session, guest.id, "chat", serving(4), 4, 1.0)
        session.get_one(TenantRow, lab.id).quota = 8
        with pytest.raises(
            QuotaExceeded, match=r"8 tiles are in its tenant's quota or in no quota.*at most 0 replicas.*--quota"
        ):
            create_endpoint(session, guest.id, "more", serving(4), 1, 2.0)
        change_endpoint(session, chat, EndpointChange(replicas=3), 3.0)
        with pytest.raises(QuotaExceeded):
            change_endpoint(session, chat, EndpointChange(replicas=4), 4.0)
        session.get_one(TenantRow, guest.id).quota = 8
        change_endpoint(session, chat, EndpointChange(replicas=2), 5.0)


def test_tiles_of_a_canary_count_and_taking_over_is_checked(tmp_path: Path) -> None:
    (tmp_path / "pef").write_text("pef")
    store = FolderStore(tmp_path / "artifacts")
    with fresh_database(tmp_path) as database, database.write() as session:
        tenant = create_tenant(session, "lab", 0.0)
        record_artifact(session, tenant.id, "pef", "pef", store.add_path(tmp_path / "pef"), 1.0, artifact_id="art-pef")
        session.get_one(TenantRow, tenant.id).max_tiles = 8
        chat = create_endpoint(session, tenant.id, "chat", serving(1), 4, 1.0)
        with pytest.raises(QuotaExceeded, match="4 replicas of 1 tiles and 8 tiles for its canary"):
            change_endpoint(session, chat, EndpointChange(serving=serving(4), canary=50), 2.0)
        change_endpoint(session, chat, EndpointChange(serving=serving(4), canary=25), 3.0)
        with pytest.raises(QuotaExceeded, match="its other endpoints want 8"):
            create_endpoint(session, tenant.id, "more", serving(1), 1, 4.0)
        with pytest.raises(QuotaExceeded):
            promote_canary(session, chat, 5.0)
        assert (chat.revision, chat.canary) == (1, 2)
        change_endpoint(session, chat, EndpointChange(replicas=2), 6.0)
        promote_canary(session, chat, 7.0)
        create_endpoint(session, tenant.id, "none", serving(0), 1, 8.0)


def test_a_lease_leads_to_its_tenant_s_job_or_endpoint_and_to_nobody_else_s(tmp_path: Path) -> None:
    (tmp_path / "pef").write_text("pef")
    store = FolderStore(tmp_path / "artifacts")
    with fresh_database(tmp_path) as database, database.write() as session:
        lab, other = (create_tenant(session, name, 0.0) for name in ("lab", "other"))
        for tenant in (lab, other):
            record_artifact(session, tenant.id, "pef", "pef", store.add_path(tmp_path / "pef"), 1.0,
                            artifact_id=f"art-{tenant.name}")  # fmt: skip
            parts = ServedParts(Selector("counter", None), f"art-{tenant.name}", None, None, 1)
            made = create_endpoint(session, tenant.id, f"of-{tenant.name}", parts, 1, 1.0)
            add_replica(session, made, 1, ReplicaState.READY)
        request = JobRequest(box="counter", verb="preprocess")
        job = service.submit_job(session, counter_boxes(), lab.id, request, 1.0).id
        held = ["rep-of-lab-1-ready", "rep-of-other-1-ready", job, "pid-4"]
        assert holder_pages(session, lab.id, held) == {
            job: f"/console/jobs/{job}", "rep-of-lab-1-ready": "/console/endpoints/of-lab",
        }  # fmt: skip


def test_a_pef_that_answers_nothing_but_its_loss_is_not_served(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "artifacts")
    with fresh_database(tmp_path) as database, database.write() as session:
        tenant = create_tenant(session, "lab", 0.0)
        for name in ("loss", "logits"):
            pef = replace(example_pef(), metadata={BOX_KEY: json.dumps({"outputs": [name]})})
            write_pef(tmp_path / name, pef, example_kernels(), {})
            record_artifact(session, tenant.id, "pef", "pef", store.add_path(tmp_path / name), 1.0,
                            artifact_id=f"art-{name}")  # fmt: skip
        request = RevisionRequest(box="counter", pef="art-logits")
        assert resolve_serving(session, counter_boxes(), store, tenant.id, request).pef_id == "art-logits"
        with pytest.raises(InvalidArgument, match=r"art-loss was compiled to train.*purpose=serve") as refused:
            resolve_serving(session, counter_boxes(), store, tenant.id, RevisionRequest(box="counter", pef="art-loss"))
        assert refused.value.detail["field"] == "pef"
