"""A model and its draft get their native kernels one after the other, while texts continue."""

import asyncio
import shutil
from pathlib import Path

import pytest

from rdukit_serving.models.served import ServedModels
from rdukit_serving.text.queue import Done, GenerationRequest
from support import shows
from support.text_boxes import make_text_model, make_tiny_llama

pytestmark = [shows("speculation", "huggingface"), pytest.mark.long]


async def no_path(name: str, purpose: str) -> Path:
    raise AssertionError(f"nothing is fetched: {name}")


def test_each_pef_is_taken_as_soon_as_it_is_there_and_the_draft_says_its_kernels(tmp_path: Path) -> None:
    pef, checkpoint = make_text_model(tmp_path, make_tiny_llama())
    # What the builds find was built before: the files are copies, which only their names tell apart.
    draft, native, native_draft = (tmp_path / f"{name}.pef" for name in ("draft", "native", "native-draft"))
    for copy in (draft, native, native_draft):
        shutil.copy(pef, copy)

    async def text(models: ServedModels) -> str:
        version = await models.ensure("llama", "")
        request = GenerationRequest([72, 105], 8, {"temperature": 0.0})
        events = [event async for event in version.texts.generate(request)]
        assert isinstance(events[-1], Done)
        return "".join(event.text for event in events)

    async def serve() -> None:
        models = ServedModels("llama", {}, tmp_path / "logs", lambda: None, no_path)
        try:
            await models.start(pef, checkpoint, (draft, checkpoint), {pef: native, draft: native_draft})
            wanted, seen = await text(models), list[tuple[str, str]]()
            while True:
                current = models.repository.current
                assert current is not None and current.files.draft is not None and current.version == "1"
                properties = current.signature.properties
                found = (current.files.pef.stem, current.files.draft[0].stem)
                assert properties["draft_kernels"].startswith("portable")
                if found not in seen:
                    seen.append(found)
                if found == ("native", "native-draft"):
                    break
                assert await text(models) == wanted
            assert seen == [(pef.stem, "draft"), ("native", "draft"), ("native", "native-draft")]
            assert await text(models) == wanted
        finally:
            await models.close()

    asyncio.run(serve())
