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
    __slots__ = ("name", "title", "model", "compiler_version", "mode", "target", "verbs", "description", "module", "resources", "serving", "labels", "licence", "model_card")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    COMPILER_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    VERBS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    LICENCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_CARD_FIELD_NUMBER: _ClassVar[int]
    name: str
    title: str
    model: str
    compiler_version: str
    mode: str
    target: str
    verbs: _containers.RepeatedCompositeFieldContainer[Verb]
    description: str
    module: str
    resources: _struct_pb2.Struct
    serving: _struct_pb2.Struct
    labels: _containers.ScalarMap[str, str]
    licence: str
    model_card: str
    def __init__(self, name: _Optional[str] = ..., title: _Optional[str] = ..., model: _Optional[str] = ..., compiler_version: _Optional[str] = ..., mode: _Optional[str] = ..., target: _Optional[str] = ..., verbs: _Optional[_Iterable[_Union[Verb, _Mapping]]] = ..., description: _Optional[str] = ..., module: _Optional[str] = ..., resources: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., serving: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ..., licence: _Optional[str] = ..., model_card: _Optional[str] = ...) -> None: ...

class Verb(_message.Message):
    __slots__ = ("name", "parameters", "inputs", "outputs", "metrics", "uncached")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    UNCACHED_FIELD_NUMBER: _ClassVar[int]
    name: str
    parameters: _containers.RepeatedCompositeFieldContainer[Parameter]
    inputs: _containers.RepeatedCompositeFieldContainer[ArtifactSlot]
    outputs: _containers.RepeatedCompositeFieldContainer[ArtifactSlot]
    metrics: _containers.RepeatedCompositeFieldContainer[Metric]
    uncached: bool
    def __init__(self, name: _Optional[str] = ..., parameters: _Optional[_Iterable[_Union[Parameter, _Mapping]]] = ..., inputs: _Optional[_Iterable[_Union[ArtifactSlot, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[ArtifactSlot, _Mapping]]] = ..., metrics: _Optional[_Iterable[_Union[Metric, _Mapping]]] = ..., uncached: _Optional[bool] = ...) -> None: ...

class Metric(_message.Message):
    __slots__ = ("name", "help", "unit", "better", "reported")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HELP_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BETTER_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    name: str
    help: str
    unit: str
    better: str
    reported: str
    def __init__(self, name: _Optional[str] = ..., help: _Optional[str] = ..., unit: _Optional[str] = ..., better: _Optional[str] = ..., reported: _Optional[str] = ...) -> None: ...

class Parameter(_message.Message):
    __slots__ = ("name", "type", "default", "legal", "help", "unit", "schema")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    LEGAL_FIELD_NUMBER: _ClassVar[int]
    HELP_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    default: _struct_pb2.Value
    legal: str
    help: str
    unit: str
    schema: _struct_pb2.Struct
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., default: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., legal: _Optional[str] = ..., help: _Optional[str] = ..., unit: _Optional[str] = ..., schema: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class ArtifactSlot(_message.Message):
    __slots__ = ("name", "kind", "required", "help", "mount", "schemes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    HELP_FIELD_NUMBER: _ClassVar[int]
    MOUNT_FIELD_NUMBER: _ClassVar[int]
    SCHEMES_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    required: bool
    help: str
    mount: str
    schemes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., required: _Optional[bool] = ..., help: _Optional[str] = ..., mount: _Optional[str] = ..., schemes: _Optional[_Iterable[str]] = ...) -> None: ...

class VerbRequest(_message.Message):
    __slots__ = ("parameters", "inputs", "output", "timeout_s", "profile")
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
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    parameters: _struct_pb2.Struct
    inputs: _containers.ScalarMap[str, str]
    output: str
    timeout_s: float
    profile: bool
    def __init__(self, parameters: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., inputs: _Optional[_Mapping[str, str]] = ..., output: _Optional[str] = ..., timeout_s: _Optional[float] = ..., profile: _Optional[bool] = ...) -> None: ...

class OperationRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("id", "after")
    ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    id: str
    after: int
    def __init__(self, id: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class ListOperationsRequest(_message.Message):
    __slots__ = ("state", "verb", "page_size", "page_token")
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERB_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    state: str
    verb: str
    page_size: int
    page_token: str
    def __init__(self, state: _Optional[str] = ..., verb: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListOperationsResponse(_message.Message):
    __slots__ = ("operations", "next_page_token")
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    next_page_token: str
    def __init__(self, operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("id", "verb", "state", "error_code", "error_message", "result", "outputs", "created_at", "ended_at", "error_detail", "started_at", "progress", "peak_memory_bytes")
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
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
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
    started_at: float
    progress: Progress
    peak_memory_bytes: int
    def __init__(self, id: _Optional[str] = ..., verb: _Optional[str] = ..., state: _Optional[str] = ..., error_code: _Optional[str] = ..., error_message: _Optional[str] = ..., result: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., outputs: _Optional[_Mapping[str, str]] = ..., created_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., error_detail: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., started_at: _Optional[float] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., peak_memory_bytes: _Optional[int] = ...) -> None: ...

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

class InferRequest(_message.Message):
    __slots__ = ("id", "rows", "tensors", "dataset", "table", "inputs", "outputs")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    rows: Rows
    tensors: Tensors
    dataset: VerbRequest
    table: Table
    inputs: _containers.ScalarMap[str, str]
    outputs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., rows: _Optional[_Union[Rows, _Mapping]] = ..., tensors: _Optional[_Union[Tensors, _Mapping]] = ..., dataset: _Optional[_Union[VerbRequest, _Mapping]] = ..., table: _Optional[_Union[Table, _Mapping]] = ..., inputs: _Optional[_Mapping[str, str]] = ..., outputs: _Optional[_Iterable[str]] = ...) -> None: ...

class InferResponse(_message.Message):
    __slots__ = ("id", "answer", "operation")
    ID_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    id: str
    answer: Answer
    operation: Operation
    def __init__(self, id: _Optional[str] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., operation: _Optional[_Union[Operation, _Mapping]] = ...) -> None: ...

class InferStreamResponse(_message.Message):
    __slots__ = ("id", "answer", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    answer: Answer
    error: Error
    def __init__(self, id: _Optional[str] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("outputs", "labels", "tensors", "timing_us", "predictions")
    class TimingUsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    TIMING_US_FIELD_NUMBER: _ClassVar[int]
    PREDICTIONS_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedCompositeFieldContainer[Row]
    labels: _containers.RepeatedScalarFieldContainer[int]
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    timing_us: _containers.ScalarMap[str, int]
    predictions: _containers.RepeatedCompositeFieldContainer[Prediction]
    def __init__(self, outputs: _Optional[_Iterable[_Union[Row, _Mapping]]] = ..., labels: _Optional[_Iterable[int]] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., timing_us: _Optional[_Mapping[str, int]] = ..., predictions: _Optional[_Iterable[_Union[Prediction, _Mapping]]] = ...) -> None: ...

class Prediction(_message.Message):
    __slots__ = ("label", "probability", "probabilities", "value")
    class ProbabilitiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    LABEL_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    label: str
    probability: float
    probabilities: _containers.ScalarMap[str, float]
    value: float
    def __init__(self, label: _Optional[str] = ..., probability: _Optional[float] = ..., probabilities: _Optional[_Mapping[str, float]] = ..., value: _Optional[float] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "detail", "status")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    detail: _struct_pb2.Struct
    status: int
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., detail: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., status: _Optional[int] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Struct]
    def __init__(self, rows: _Optional[_Iterable[_Union[_struct_pb2.Struct, _Mapping]]] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    def __init__(self, rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class Tensors(_message.Message):
    __slots__ = ("tensors",)
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    def __init__(self, tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "datatype", "shape", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATATYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    datatype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, name: _Optional[str] = ..., datatype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...
