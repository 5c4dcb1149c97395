from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Description(_message.Message):
    __slots__ = ("name", "title", "model", "compiler_version", "mode", "target", "verbs", "description")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    COMPILER_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    VERBS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    title: str
    model: str
    compiler_version: str
    mode: str
    target: str
    verbs: _containers.RepeatedCompositeFieldContainer[Verb]
    description: str
    def __init__(self, name: _Optional[str] = ..., title: _Optional[str] = ..., model: _Optional[str] = ..., compiler_version: _Optional[str] = ..., mode: _Optional[str] = ..., target: _Optional[str] = ..., verbs: _Optional[_Iterable[_Union[Verb, _Mapping]]] = ..., description: _Optional[str] = ...) -> None: ...

class Verb(_message.Message):
    __slots__ = ("name", "parameters", "inputs", "outputs")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    parameters: _containers.RepeatedCompositeFieldContainer[Parameter]
    inputs: _containers.RepeatedCompositeFieldContainer[ArtifactSlot]
    outputs: _containers.RepeatedCompositeFieldContainer[ArtifactSlot]
    def __init__(self, name: _Optional[str] = ..., parameters: _Optional[_Iterable[_Union[Parameter, _Mapping]]] = ..., inputs: _Optional[_Iterable[_Union[ArtifactSlot, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[ArtifactSlot, _Mapping]]] = ...) -> None: ...

class Parameter(_message.Message):
    __slots__ = ("name", "type", "default", "legal", "help")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    LEGAL_FIELD_NUMBER: _ClassVar[int]
    HELP_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    default: _struct_pb2.Value
    legal: str
    help: str
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., default: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., legal: _Optional[str] = ..., help: _Optional[str] = ...) -> None: ...

class ArtifactSlot(_message.Message):
    __slots__ = ("name", "kind", "required")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    required: bool
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., required: _Optional[bool] = ...) -> None: ...

class VerbRequest(_message.Message):
    __slots__ = ("parameters", "inputs", "output", "idempotency_key")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    parameters: _struct_pb2.Struct
    inputs: _containers.ScalarMap[str, str]
    output: str
    idempotency_key: str
    def __init__(self, parameters: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., inputs: _Optional[_Mapping[str, str]] = ..., output: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class OperationRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ListOperationsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListOperationsResponse(_message.Message):
    __slots__ = ("operations",)
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    def __init__(self, operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("id", "verb", "state", "error_code", "error_message", "result", "outputs", "created_at", "ended_at", "error_detail")
    class OutputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    VERB_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAIL_FIELD_NUMBER: _ClassVar[int]
    id: str
    verb: str
    state: str
    error_code: str
    error_message: str
    result: _struct_pb2.Struct
    outputs: _containers.ScalarMap[str, str]
    created_at: float
    ended_at: float
    error_detail: _struct_pb2.Struct
    def __init__(self, id: _Optional[str] = ..., verb: _Optional[str] = ..., state: _Optional[str] = ..., error_code: _Optional[str] = ..., error_message: _Optional[str] = ..., result: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., outputs: _Optional[_Mapping[str, str]] = ..., created_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., error_detail: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class OperationEvent(_message.Message):
    __slots__ = ("sequence", "kind", "at", "operation", "progress", "log")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    kind: str
    at: float
    operation: Operation
    progress: Progress
    log: str
    def __init__(self, sequence: _Optional[int] = ..., kind: _Optional[str] = ..., at: _Optional[float] = ..., operation: _Optional[_Union[Operation, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., log: _Optional[str] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("stage", "step", "total", "loss", "throughput", "eta_s")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    ETA_S_FIELD_NUMBER: _ClassVar[int]
    stage: str
    step: int
    total: int
    loss: float
    throughput: float
    eta_s: float
    def __init__(self, stage: _Optional[str] = ..., step: _Optional[int] = ..., total: _Optional[int] = ..., loss: _Optional[float] = ..., throughput: _Optional[float] = ..., eta_s: _Optional[float] = ...) -> None: ...

class InferTensorsRequest(_message.Message):
    __slots__ = ("rows", "inputs")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ROWS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    inputs: _containers.ScalarMap[str, str]
    def __init__(self, rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ..., inputs: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class InferTensorsResponse(_message.Message):
    __slots__ = ("outputs", "labels")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedCompositeFieldContainer[Row]
    labels: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, outputs: _Optional[_Iterable[_Union[Row, _Mapping]]] = ..., labels: _Optional[_Iterable[int]] = ...) -> None: ...
