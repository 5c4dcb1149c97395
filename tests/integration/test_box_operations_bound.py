"""How many operations a box takes at once, with a real service and its children."""

import contextlib
from pathlib import Path

import pytest

from rdukit.errors import Overloaded
from rdukit_modelbox.contract.box import Verb, find_box_file
from rdukit_modelbox.operations import VerbCall
from rdukit_modelbox.server.service import BoxService
from support import shows

pytestmark = shows("box", "modelbox")


async def test_more_operations_than_allowed_are_refused_until_one_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_BOX_MAX_OPERATIONS", "2")
    service = BoxService(find_box_file("logreg"), tmp_path)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(service.close)
        first = service.submit(Verb.PREPROCESS, VerbCall())
        service.submit(Verb.COMPILE, VerbCall())
        with pytest.raises(
            Overloaded,
            match=r"2 operations wait or run, which is the limit 2 "
            r"\(box.max_operations\)",
        ) as refused:
            service.submit(Verb.COMPILE, VerbCall())
        assert (refused.value.http_status, refused.value.grpc_status) == (429, "RESOURCE_EXHAUSTED")
        await service.cancel(first.id)
        service.submit(Verb.COMPILE, VerbCall())
    assert len(service.operations.page(None, None, 10).operations) == 3
