"""A box's description: everything that its YAML says, the same over both wires."""

from google.protobuf.json_format import MessageToDict

from rdukit_modelbox.contract.box import Box
from rdukit_modelbox.contract.describe import describe
from rdukit_modelbox.server.grpc_messages import description_message
from support import shows

pytestmark = shows("modelbox", "wire")


def full_box() -> Box:
    return Box.model_validate(
        {
            "apiVersion": "rdukit.dev/v1", "name": "mine", "title": "Mine", "description": "A box.",
            "module": "code/model.py:make", "compilerVersion": "0.1", "mode": "o3", "target": "sn30",
            "verbs": ["compile"],
            "parameters": [
                {"name": "mode", "type": "string", "default": "o3", "legal": {"enum": ["o0", "o3"]}, "help": "M.",
                 "verbs": ["compile"]},
                {"name": "steps", "type": "int", "default": 4, "unit": "steps", "legal": {"above": 0, "below": 9},
                 "when": {"mode": ["o3"]}, "verbs": ["compile"], "help": "S."},
            ],
            "artifacts": {
                "compile": {
                    "outputs": [
                        {"name": "pef", "kind": "file", "help": "P.", "mount": "/models", "schemes": ["file", "s3"]}
                    ]
                }
            },
            "resources": {"tiles": 2, "memory": "1GiB", "cpus": 0.5},
            "serving": {"name": "digits", "inputs": [{"name": "x", "symbol": "image"}]},
            "labels": {"team": "vision"}, "licence": "Apache-2.0", "modelCard": "card.md",
        }
    )  # fmt: skip


def test_it_has_everything_that_the_box_says() -> None:
    told = describe(full_box())
    assert (told["module"], told["licence"], told["model_card"]) == ("code/model.py:make", "Apache-2.0", "card.md")
    assert told["resources"] == {"tiles": 2, "memory": 1 << 30, "cpus": 0.5}
    assert told["serving"] == {"name": "digits", "inputs": [{"name": "x", "symbol": "image"}]}
    verbs = told["verbs"]
    assert isinstance(verbs, list)
    steps = verbs[0]["parameters"][1]
    assert (steps["legal"], steps["unit"]) == ("0 < x < 9; only when mode is o3", "steps")
    assert (steps["schema"]["exclusiveMinimum"], steps["schema"]["x-when"]) == (0, {"mode": ["o3"]})
    assert verbs[0]["outputs"][0] == {
        "name": "pef", "kind": "file", "required": True, "help": "P.", "mount": "/models", "schemes": ["file", "s3"],
    }  # fmt: skip


def test_the_grpc_message_says_the_same() -> None:
    told = describe(full_box())
    message = MessageToDict(description_message(told), preserving_proto_field_name=True)
    verbs = told["verbs"]
    assert isinstance(verbs, list)
    for verb in verbs:
        # What is empty is left out of a message.
        del verb["inputs"]
    assert message == told
