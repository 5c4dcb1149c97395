"""Routes of the catalog."""

from fastapi import APIRouter, Request
from pydantic import BaseModel, JsonValue

from rdukit_platform.gateway.dependencies import Reader, platform_of

router = APIRouter(prefix="/v1/catalog", tags=["catalog"])


class BoxList(BaseModel):
    """The ModelBoxes with their verbs and parameters."""

    boxes: list[dict[str, JsonValue]]


@router.get("")
def list_(request: Request, caller: Reader) -> BoxList:
    """All boxes."""
    boxes = platform_of(request).catalog.boxes().boxes
    return BoxList.model_validate({"boxes": [dict(box.raw) for _, box in sorted(boxes.items())]})


@router.get("/{box}")
def show(request: Request, box: str, caller: Reader) -> dict[str, JsonValue]:
    """One box: its description as the box gives it."""
    found: dict[str, JsonValue] = BoxList.model_validate(
        {"boxes": [dict(platform_of(request).catalog.boxes().box(box).raw)]}
    ).boxes[0]
    return found
