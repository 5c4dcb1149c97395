from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitRequest(_message.Message):
    __slots__ = ("box", "verb", "parameters", "inputs", "name", "tiles", "max_attempts", "priority", "preemptible", "run_limit_s", "deadline_s", "deadline", "retry", "labels", "idempotency_key", "members", "constraint", "profile")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ConstraintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BOX_FIELD_NUMBER: _ClassVar[int]
    VERB_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIBLE_FIELD_NUMBER: _ClassVar[int]
    RUN_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    box: str
    verb: str
    parameters: _struct_pb2.Struct
    inputs: _containers.ScalarMap[str, str]
    name: str
    tiles: int
    max_attempts: int
    priority: int
    preemptible: bool
    run_limit_s: float
    deadline_s: float
    deadline: str
    retry: RetryPolicy
    labels: _containers.ScalarMap[str, str]
    idempotency_key: str
    members: int
    constraint: _containers.ScalarMap[str, str]
    profile: bool
    def __init__(self, box: _Optional[str] = ..., verb: _Optional[str] = ..., parameters: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., inputs: _Optional[_Mapping[str, str]] = ..., name: _Optional[str] = ..., tiles: _Optional[int] = ..., max_attempts: _Optional[int] = ..., priority: _Optional[int] = ..., preemptible: _Optional[bool] = ..., run_limit_s: _Optional[float] = ..., deadline_s: _Optional[float] = ..., deadline: _Optional[str] = ..., retry: _Optional[_Union[RetryPolicy, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ..., idempotency_key: _Optional[str] = ..., members: _Optional[int] = ..., constraint: _Optional[_Mapping[str, str]] = ..., profile: _Optional[bool] = ...) -> None: ...

class RetryPolicy(_message.Message):
    __slots__ = ("backoff_s", "max_backoff_s", "on")
    BACKOFF_S_FIELD_NUMBER: _ClassVar[int]
    MAX_BACKOFF_S_FIELD_NUMBER: _ClassVar[int]
    ON_FIELD_NUMBER: _ClassVar[int]
    backoff_s: float
    max_backoff_s: float
    on: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, backoff_s: _Optional[float] = ..., max_backoff_s: _Optional[float] = ..., on: _Optional[_Iterable[str]] = ...) -> None: ...

class JobRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("state", "labels", "page_size", "page_token", "search", "box")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STATE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    BOX_FIELD_NUMBER: _ClassVar[int]
    state: str
    labels: _containers.ScalarMap[str, str]
    page_size: int
    page_token: str
    search: str
    box: str
    def __init__(self, state: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., search: _Optional[str] = ..., box: _Optional[str] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("jobs", "next_page_token", "searched_to")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SEARCHED_TO_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    next_page_token: str
    searched_to: float
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., searched_to: _Optional[float] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("id", "after")
    ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    id: str
    after: int
    def __init__(self, id: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence", "kind", "at", "attempt", "data")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    kind: str
    at: float
    attempt: int
    data: _struct_pb2.Struct
    def __init__(self, sequence: _Optional[int] = ..., kind: _Optional[str] = ..., at: _Optional[float] = ..., attempt: _Optional[int] = ..., data: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("id", "follow", "after")
    ID_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    id: str
    follow: bool
    after: int
    def __init__(self, id: _Optional[str] = ..., follow: _Optional[bool] = ..., after: _Optional[int] = ...) -> None: ...

class LogLine(_message.Message):
    __slots__ = ("sequence", "line", "attempt", "at")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    line: str
    attempt: int
    at: float
    def __init__(self, sequence: _Optional[int] = ..., line: _Optional[str] = ..., attempt: _Optional[int] = ..., at: _Optional[float] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "name", "box", "verb", "state", "reason", "advice", "error", "waits_for", "wait_code", "estimated_start", "parameters", "inputs", "outputs", "result", "progress", "tiles", "priority", "preemptible", "preemptions", "run_limit_s", "deadline_at", "retry", "labels", "attempt", "max_attempts", "pipeline", "step", "version", "created_at", "queued_at", "started_at", "ended_at", "members", "constraint", "profile")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class OutputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ConstraintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BOX_FIELD_NUMBER: _ClassVar[int]
    VERB_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    WAIT_CODE_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_START_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIBLE_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    RUN_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_AT_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    QUEUED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    box: str
    verb: str
    state: str
    reason: str
    advice: str
    error: _struct_pb2.Struct
    waits_for: str
    wait_code: str
    estimated_start: float
    parameters: _struct_pb2.Struct
    inputs: _containers.ScalarMap[str, str]
    outputs: _containers.ScalarMap[str, str]
    result: _struct_pb2.Struct
    progress: _struct_pb2.Struct
    tiles: int
    priority: int
    preemptible: bool
    preemptions: int
    run_limit_s: float
    deadline_at: float
    retry: _struct_pb2.Struct
    labels: _containers.ScalarMap[str, str]
    attempt: int
    max_attempts: int
    pipeline: str
    step: str
    version: int
    created_at: float
    queued_at: float
    started_at: float
    ended_at: float
    members: int
    constraint: _containers.ScalarMap[str, str]
    profile: bool
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., box: _Optional[str] = ..., verb: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., advice: _Optional[str] = ..., error: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., waits_for: _Optional[str] = ..., wait_code: _Optional[str] = ..., estimated_start: _Optional[float] = ..., parameters: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., inputs: _Optional[_Mapping[str, str]] = ..., outputs: _Optional[_Mapping[str, str]] = ..., result: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., progress: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., tiles: _Optional[int] = ..., priority: _Optional[int] = ..., preemptible: _Optional[bool] = ..., preemptions: _Optional[int] = ..., run_limit_s: _Optional[float] = ..., deadline_at: _Optional[float] = ..., retry: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ..., attempt: _Optional[int] = ..., max_attempts: _Optional[int] = ..., pipeline: _Optional[str] = ..., step: _Optional[str] = ..., version: _Optional[int] = ..., created_at: _Optional[float] = ..., queued_at: _Optional[float] = ..., started_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., members: _Optional[int] = ..., constraint: _Optional[_Mapping[str, str]] = ..., profile: _Optional[bool] = ...) -> None: ...
