"""What a box tells about itself in the Open Inference Protocol. Pure."""

from collections.abc import Mapping
from typing import Final

from rdukit import __version__
from rdukit_modelbox.serving.model_version import ModelVersion
from rdukit_modelbox.serving.repository import Repository
from rdukit_modelbox.serving.signature import TensorSpec

SERVER_NAME: Final = "rdukit"
PLATFORM: Final = "rdukit_pef"
EXTENSIONS: Final = ("binary_tensor_data", "classification", "model_configuration", "model_repository", "statistics")


def server_metadata() -> dict[str, object]:
    """``GET /v2``."""
    return {"name": SERVER_NAME, "version": __version__, "extensions": list(EXTENSIONS)}


def model_metadata(repository: Repository, version: ModelVersion) -> dict[str, object]:
    """``GET /v2/models/NAME``."""
    signature = version.signature
    return {
        "name": repository.name,
        "versions": repository.ready_versions(),
        "platform": PLATFORM,
        "inputs": [spec.metadata() for spec in signature.inputs],
        "outputs": [spec.metadata() for spec in signature.outputs],
        "properties": dict(signature.properties),
    }


def model_configuration(repository: Repository, version: ModelVersion) -> dict[str, object]:
    """``GET /v2/models/NAME/config``. Source: Triton's ``ModelConfig``, the fields that mean something here."""
    signature = version.signature
    return {
        "name": repository.name,
        "platform": PLATFORM,
        "backend": "rdukit",
        "version_policy": {"specific": {"versions": [int(v) for v in repository.ready_versions()]}},
        "max_batch_size": signature.max_batch,
        "input": [_configuration(spec) for spec in signature.inputs],
        "output": [_configuration(spec) for spec in signature.outputs],
        "instance_group": [{"name": repository.name, "kind": "KIND_MODEL", "count": 1}],
        "dynamic_batching": {"preferred_batch_size": [signature.max_batch], "max_queue_delay_microseconds": 0},
        "parameters": {name: {"string_value": value} for name, value in signature.properties.items()},
    }


def _configuration(spec: TensorSpec) -> Mapping[str, object]:
    data_type = "TYPE_" + {"BYTES": "STRING"}.get(spec.datatype, spec.datatype)
    return {"name": spec.name, "data_type": data_type, "dims": list(spec.row_shape)}
