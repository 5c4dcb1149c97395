"""Routes that a fork server builds: the first request of a box that was forked finds them ready."""

from pathlib import Path

import httpx
import pytest
from pydantic import TypeAdapter

from rdukit_modelbox.contract.box import find_box_file
from rdukit_modelbox.rest import routes_ahead
from rdukit_modelbox.server.serve import BoxOptions, ServedBox
from support import shows

pytestmark = shows("job-boxes")


async def test_the_first_request_of_a_forked_box_builds_no_routes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_ahead, "_AHEAD", [])
    service = ServedBox(BoxOptions(find_box_file("logreg"), tmp_path))
    await routes_ahead.build_routes_ahead(service)
    ahead = routes_ahead.find_routes_ahead()
    assert ahead is not None
    built, build = list[object](), TypeAdapter.__init__

    def count(self: TypeAdapter[object], *args: object, **options: object) -> None:
        built.append(args)
        build(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(TypeAdapter, "__init__", count)
    try:
        transport = httpx.ASGITransport(app=ahead.bind(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://box") as client:
            answers = [await client.get("/v1/describe"), await client.post("/v1/preprocess", json={"output": 1})]
        assert [answer.status_code for answer in answers] == [200, 422]
        assert built == []
    finally:
        await service.close()
