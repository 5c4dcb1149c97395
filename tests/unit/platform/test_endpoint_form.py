"""The forms of endpoints: what they send, and at which field they say what is wrong."""

import pytest

from rdukit.errors import Conflict, IllegalValue, InvalidArgument, NotFound, RdukitError
from rdukit_platform.console.endpoint_form import check_form, place_error, view_fields
from rdukit_platform.console.endpoint_form_pages import CREATE, REVISION
from rdukit_platform.console.run_form import Option
from rdukit_platform.endpoints.schemas import EndpointRequest, UpdateRequest
from support import shows

pytestmark = shows("console", "endpoints")

GIVEN = {"name": "read", "expert": "digits:2", "pef": "art-1", "replicas": "2", "idle": "15m"}


def test_what_is_left_empty_is_not_sent() -> None:
    asked, errors = check_form({**GIVEN, "checkpoint": " ", "tiles": "", "act": "x"}, CREATE, EndpointRequest)
    assert errors == {}
    assert asked is not None
    assert asked.model_dump(exclude_unset=True) == {
        "name": "read", "expert": "digits:2", "pef": "art-1", "replicas": 2, "idle_s": 900.0,
    }  # fmt: skip


def test_every_field_that_is_wrong_says_what_is_legal() -> None:
    given = {"name": "Bad Name", "replicas": "99", "idle": "2", "tiles": "0", "expert": "e" * 200}
    asked, errors = check_form(given, CREATE, EndpointRequest)
    assert asked is None
    assert sorted(errors) == ["expert", "idle", "name", "replicas", "tiles"]
    assert "0 to 64" in errors["replicas"] and "5s to 30d" in errors["idle"] and "a-z, 0-9" in errors["name"]
    assert list(check_form({"canary": "100"}, REVISION, UpdateRequest)[1]) == ["canary"]
    assert list(check_form({"replicas": "1"}, CREATE, EndpointRequest)[1]) == ["name"]


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (Conflict("endpoint 'read' already exists", field="name"), "name"),
        (Conflict("expert digits:2 is deprecated: worse; name another one", field="expert"), "expert"),
        (NotFound("there is no artifact 'art-1'; list yours"), "pef"),
        (InvalidArgument("expert digits:2 was trained without a PEF; name a PEF to serve it", field="pef"), "pef"),
        (IllegalValue("idle_s is 1; expected 0 (never), or 5 to 2592000 (30 days)", field="idle_s"), "idle"),
        (IllegalValue("parameter 'lr' is 2", field="lr"), ""),
        (RdukitError("already reading: art-12 is broken"), ""),
    ],
)
def test_an_error_is_said_at_the_field_that_it_is_about(error: RdukitError, field: str) -> None:
    assert place_error(error, GIVEN) == {field: error.message}


def test_a_list_keeps_what_was_given_though_it_is_not_offered() -> None:
    (field,) = view_fields(["expert"], {"expert": "digits:1"}, {}, {"expert": [Option("digits:2", "digits:2")]})
    assert [option.value for option in field.options] == ["", "digits:2", "digits:1"]
    assert field.value == "digits:1"
