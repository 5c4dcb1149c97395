from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Presence(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRESENCE_ABSENT: _ClassVar[Presence]
    PRESENCE_PRESENT: _ClassVar[Presence]
    PRESENCE_VM_PRESENT: _ClassVar[Presence]
    PRESENCE_UNKNOWN: _ClassVar[Presence]

class RDUState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RDU_FUNCTIONAL: _ClassVar[RDUState]
    RDU_PENDING: _ClassVar[RDUState]
    RDU_DEGRADED: _ClassVar[RDUState]
    RDU_UNAVAILABLE: _ClassVar[RDUState]

class CounterKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COUNTER_KIND_UNSPECIFIED: _ClassVar[CounterKind]
    COUNTER_KIND_DDR: _ClassVar[CounterKind]
    COUNTER_KIND_PCIE: _ClassVar[CounterKind]
    COUNTER_KIND_TILE: _ClassVar[CounterKind]
    COUNTER_KIND_APPLICATION: _ClassVar[CounterKind]
    COUNTER_KIND_HBM: _ClassVar[CounterKind]
    COUNTER_KIND_D2D: _ClassVar[CounterKind]
    COUNTER_KIND_ETHERNET: _ClassVar[CounterKind]
PRESENCE_ABSENT: Presence
PRESENCE_PRESENT: Presence
PRESENCE_VM_PRESENT: Presence
PRESENCE_UNKNOWN: Presence
RDU_FUNCTIONAL: RDUState
RDU_PENDING: RDUState
RDU_DEGRADED: RDUState
RDU_UNAVAILABLE: RDUState
COUNTER_KIND_UNSPECIFIED: CounterKind
COUNTER_KIND_DDR: CounterKind
COUNTER_KIND_PCIE: CounterKind
COUNTER_KIND_TILE: CounterKind
COUNTER_KIND_APPLICATION: CounterKind
COUNTER_KIND_HBM: CounterKind
COUNTER_KIND_D2D: CounterKind
COUNTER_KIND_ETHERNET: CounterKind

class GetSystemPlatformInfoRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class GetSystemPlatformInfoReply(_message.Message):
    __slots__ = ("request_id", "error_details", "platform_name", "node_name", "is_emulated")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    IS_EMULATED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    platform_name: str
    node_name: str
    is_emulated: bool
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., platform_name: _Optional[str] = ..., node_name: _Optional[str] = ..., is_emulated: _Optional[bool] = ...) -> None: ...

class GetSystemVersionInfoRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class GetSystemVersionInfoReply(_message.Message):
    __slots__ = ("request_id", "error_details", "sambaflow", "runtime", "runtime_interface", "pef", "snml", "snml_admin", "error_log", "fault_log", "inventory_log", "policy_log")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    SAMBAFLOW_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_INTERFACE_FIELD_NUMBER: _ClassVar[int]
    PEF_FIELD_NUMBER: _ClassVar[int]
    SNML_FIELD_NUMBER: _ClassVar[int]
    SNML_ADMIN_FIELD_NUMBER: _ClassVar[int]
    ERROR_LOG_FIELD_NUMBER: _ClassVar[int]
    FAULT_LOG_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_LOG_FIELD_NUMBER: _ClassVar[int]
    POLICY_LOG_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    sambaflow: str
    runtime: str
    runtime_interface: str
    pef: str
    snml: str
    snml_admin: str
    error_log: str
    fault_log: str
    inventory_log: str
    policy_log: str
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., sambaflow: _Optional[str] = ..., runtime: _Optional[str] = ..., runtime_interface: _Optional[str] = ..., pef: _Optional[str] = ..., snml: _Optional[str] = ..., snml_admin: _Optional[str] = ..., error_log: _Optional[str] = ..., fault_log: _Optional[str] = ..., inventory_log: _Optional[str] = ..., policy_log: _Optional[str] = ...) -> None: ...

class GetSystemPlatformDetailsRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class GetSystemPlatformDetailsReply(_message.Message):
    __slots__ = ("request_id", "error_details", "chip", "max_xrdus", "max_rdus_per_xrdu", "max_tiles_per_rdu", "max_ddr_channels_per_rdu", "max_dimms_per_ddr_channel", "max_pcie_links_per_rdu", "max_applications", "ddr_bytes_per_rdu", "hbm_bytes_per_rdu", "ddr_channel_bandwidth", "pcie_link_bandwidth", "counter_bits")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    CHIP_FIELD_NUMBER: _ClassVar[int]
    MAX_XRDUS_FIELD_NUMBER: _ClassVar[int]
    MAX_RDUS_PER_XRDU_FIELD_NUMBER: _ClassVar[int]
    MAX_TILES_PER_RDU_FIELD_NUMBER: _ClassVar[int]
    MAX_DDR_CHANNELS_PER_RDU_FIELD_NUMBER: _ClassVar[int]
    MAX_DIMMS_PER_DDR_CHANNEL_FIELD_NUMBER: _ClassVar[int]
    MAX_PCIE_LINKS_PER_RDU_FIELD_NUMBER: _ClassVar[int]
    MAX_APPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    DDR_BYTES_PER_RDU_FIELD_NUMBER: _ClassVar[int]
    HBM_BYTES_PER_RDU_FIELD_NUMBER: _ClassVar[int]
    DDR_CHANNEL_BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    PCIE_LINK_BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    COUNTER_BITS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    chip: str
    max_xrdus: int
    max_rdus_per_xrdu: int
    max_tiles_per_rdu: int
    max_ddr_channels_per_rdu: int
    max_dimms_per_ddr_channel: int
    max_pcie_links_per_rdu: int
    max_applications: int
    ddr_bytes_per_rdu: int
    hbm_bytes_per_rdu: int
    ddr_channel_bandwidth: float
    pcie_link_bandwidth: float
    counter_bits: int
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., chip: _Optional[str] = ..., max_xrdus: _Optional[int] = ..., max_rdus_per_xrdu: _Optional[int] = ..., max_tiles_per_rdu: _Optional[int] = ..., max_ddr_channels_per_rdu: _Optional[int] = ..., max_dimms_per_ddr_channel: _Optional[int] = ..., max_pcie_links_per_rdu: _Optional[int] = ..., max_applications: _Optional[int] = ..., ddr_bytes_per_rdu: _Optional[int] = ..., hbm_bytes_per_rdu: _Optional[int] = ..., ddr_channel_bandwidth: _Optional[float] = ..., pcie_link_bandwidth: _Optional[float] = ..., counter_bits: _Optional[int] = ...) -> None: ...

class Component(_message.Message):
    __slots__ = ("comp_name", "kind", "serial_number", "part_number", "presence", "health", "size_bytes", "rdu", "tile", "available_tiles", "is_perfect", "children")
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SERIAL_NUMBER_FIELD_NUMBER: _ClassVar[int]
    PART_NUMBER_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RDU_FIELD_NUMBER: _ClassVar[int]
    TILE_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_TILES_FIELD_NUMBER: _ClassVar[int]
    IS_PERFECT_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    comp_name: str
    kind: str
    serial_number: str
    part_number: str
    presence: Presence
    health: str
    size_bytes: int
    rdu: int
    tile: int
    available_tiles: int
    is_perfect: bool
    children: _containers.RepeatedCompositeFieldContainer[Component]
    def __init__(self, comp_name: _Optional[str] = ..., kind: _Optional[str] = ..., serial_number: _Optional[str] = ..., part_number: _Optional[str] = ..., presence: _Optional[_Union[Presence, str]] = ..., health: _Optional[str] = ..., size_bytes: _Optional[int] = ..., rdu: _Optional[int] = ..., tile: _Optional[int] = ..., available_tiles: _Optional[int] = ..., is_perfect: _Optional[bool] = ..., children: _Optional[_Iterable[_Union[Component, _Mapping]]] = ...) -> None: ...

class GetResourceRequest(_message.Message):
    __slots__ = ("request_id", "comp_name")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    comp_name: str
    def __init__(self, request_id: _Optional[str] = ..., comp_name: _Optional[str] = ...) -> None: ...

class GetResourceReply(_message.Message):
    __slots__ = ("request_id", "error_details", "platform_name", "root")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_NAME_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    platform_name: str
    root: Component
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., platform_name: _Optional[str] = ..., root: _Optional[_Union[Component, _Mapping]] = ...) -> None: ...

class GetRDUOperationalStatusRequest(_message.Message):
    __slots__ = ("request_id", "comp_name")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    comp_name: str
    def __init__(self, request_id: _Optional[str] = ..., comp_name: _Optional[str] = ...) -> None: ...

class GetRDUOperationalStatusReply(_message.Message):
    __slots__ = ("request_id", "error_details", "rdu", "comp_name", "state", "reason", "since", "available_tiles", "is_perfect")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    RDU_FIELD_NUMBER: _ClassVar[int]
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_TILES_FIELD_NUMBER: _ClassVar[int]
    IS_PERFECT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    rdu: int
    comp_name: str
    state: RDUState
    reason: str
    since: int
    available_tiles: int
    is_perfect: bool
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., rdu: _Optional[int] = ..., comp_name: _Optional[str] = ..., state: _Optional[_Union[RDUState, str]] = ..., reason: _Optional[str] = ..., since: _Optional[int] = ..., available_tiles: _Optional[int] = ..., is_perfect: _Optional[bool] = ...) -> None: ...

class GetTileInfoRequest(_message.Message):
    __slots__ = ("request_id", "comp_name")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    comp_name: str
    def __init__(self, request_id: _Optional[str] = ..., comp_name: _Optional[str] = ...) -> None: ...

class GetTileInfoReply(_message.Message):
    __slots__ = ("request_id", "error_details", "tiles")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    tiles: _containers.RepeatedCompositeFieldContainer[TileInfo]
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., tiles: _Optional[_Iterable[_Union[TileInfo, _Mapping]]] = ...) -> None: ...

class TileInfo(_message.Message):
    __slots__ = ("comp_name", "rdu", "tile", "status", "health", "lease", "application", "job", "user", "pid", "phase")
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    RDU_FIELD_NUMBER: _ClassVar[int]
    TILE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    comp_name: str
    rdu: int
    tile: int
    status: int
    health: str
    lease: str
    application: str
    job: str
    user: str
    pid: int
    phase: str
    def __init__(self, comp_name: _Optional[str] = ..., rdu: _Optional[int] = ..., tile: _Optional[int] = ..., status: _Optional[int] = ..., health: _Optional[str] = ..., lease: _Optional[str] = ..., application: _Optional[str] = ..., job: _Optional[str] = ..., user: _Optional[str] = ..., pid: _Optional[int] = ..., phase: _Optional[str] = ...) -> None: ...

class GetHangRecoveryHistoryRequest(_message.Message):
    __slots__ = ("request_id", "comp_name", "limit")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    comp_name: str
    limit: int
    def __init__(self, request_id: _Optional[str] = ..., comp_name: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class GetHangRecoveryHistoryReply(_message.Message):
    __slots__ = ("request_id", "error_details", "rdu", "comp_name", "timestamp", "event", "outcome")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    RDU_FIELD_NUMBER: _ClassVar[int]
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    rdu: int
    comp_name: str
    timestamp: int
    event: str
    outcome: str
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., rdu: _Optional[int] = ..., comp_name: _Optional[str] = ..., timestamp: _Optional[int] = ..., event: _Optional[str] = ..., outcome: _Optional[str] = ...) -> None: ...

class GetSystemErrorsRequest(_message.Message):
    __slots__ = ("request_id", "comp_name", "err_type", "since", "until", "fault_uuid", "min_count", "max_count", "limit", "after_uuid")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    ERR_TYPE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    FAULT_UUID_FIELD_NUMBER: _ClassVar[int]
    MIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_UUID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    comp_name: str
    err_type: str
    since: int
    until: int
    fault_uuid: str
    min_count: int
    max_count: int
    limit: int
    after_uuid: str
    def __init__(self, request_id: _Optional[str] = ..., comp_name: _Optional[str] = ..., err_type: _Optional[str] = ..., since: _Optional[int] = ..., until: _Optional[int] = ..., fault_uuid: _Optional[str] = ..., min_count: _Optional[int] = ..., max_count: _Optional[int] = ..., limit: _Optional[int] = ..., after_uuid: _Optional[str] = ...) -> None: ...

class GetSystemErrorsReply(_message.Message):
    __slots__ = ("request_id", "error_details", "err_uuid", "err_type", "err_type_desc", "err_data", "err_count", "orig_timestamp", "last_timestamp", "comp_name", "fault_uuid", "application", "tenant", "job")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    ERR_UUID_FIELD_NUMBER: _ClassVar[int]
    ERR_TYPE_FIELD_NUMBER: _ClassVar[int]
    ERR_TYPE_DESC_FIELD_NUMBER: _ClassVar[int]
    ERR_DATA_FIELD_NUMBER: _ClassVar[int]
    ERR_COUNT_FIELD_NUMBER: _ClassVar[int]
    ORIG_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    LAST_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    FAULT_UUID_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    err_uuid: str
    err_type: str
    err_type_desc: str
    err_data: str
    err_count: int
    orig_timestamp: int
    last_timestamp: int
    comp_name: str
    fault_uuid: str
    application: str
    tenant: str
    job: str
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., err_uuid: _Optional[str] = ..., err_type: _Optional[str] = ..., err_type_desc: _Optional[str] = ..., err_data: _Optional[str] = ..., err_count: _Optional[int] = ..., orig_timestamp: _Optional[int] = ..., last_timestamp: _Optional[int] = ..., comp_name: _Optional[str] = ..., fault_uuid: _Optional[str] = ..., application: _Optional[str] = ..., tenant: _Optional[str] = ..., job: _Optional[str] = ...) -> None: ...

class GetSystemFaultsRequest(_message.Message):
    __slots__ = ("request_id", "comp_name", "fault_type", "since", "until", "severity", "fault_uuid", "include_cleared", "limit", "after_uuid")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    FAULT_TYPE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    FAULT_UUID_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_CLEARED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_UUID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    comp_name: str
    fault_type: str
    since: int
    until: int
    severity: str
    fault_uuid: str
    include_cleared: bool
    limit: int
    after_uuid: str
    def __init__(self, request_id: _Optional[str] = ..., comp_name: _Optional[str] = ..., fault_type: _Optional[str] = ..., since: _Optional[int] = ..., until: _Optional[int] = ..., severity: _Optional[str] = ..., fault_uuid: _Optional[str] = ..., include_cleared: _Optional[bool] = ..., limit: _Optional[int] = ..., after_uuid: _Optional[str] = ...) -> None: ...

class GetSystemFaultsReply(_message.Message):
    __slots__ = ("request_id", "error_details", "fault")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    fault: Fault
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("fault_uuid", "fault_type", "fault_state", "severity", "comp_name", "comp_ser_num", "fault_desc", "recovery_act", "action", "err_uuid", "timestamp", "cleared_timestamp", "cleared_by", "suspects", "application", "tenant", "job")
    FAULT_UUID_FIELD_NUMBER: _ClassVar[int]
    FAULT_TYPE_FIELD_NUMBER: _ClassVar[int]
    FAULT_STATE_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    COMP_SER_NUM_FIELD_NUMBER: _ClassVar[int]
    FAULT_DESC_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_ACT_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    ERR_UUID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    CLEARED_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    CLEARED_BY_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    fault_uuid: str
    fault_type: str
    fault_state: str
    severity: str
    comp_name: str
    comp_ser_num: str
    fault_desc: str
    recovery_act: str
    action: str
    err_uuid: str
    timestamp: int
    cleared_timestamp: int
    cleared_by: str
    suspects: _containers.RepeatedScalarFieldContainer[str]
    application: str
    tenant: str
    job: str
    def __init__(self, fault_uuid: _Optional[str] = ..., fault_type: _Optional[str] = ..., fault_state: _Optional[str] = ..., severity: _Optional[str] = ..., comp_name: _Optional[str] = ..., comp_ser_num: _Optional[str] = ..., fault_desc: _Optional[str] = ..., recovery_act: _Optional[str] = ..., action: _Optional[str] = ..., err_uuid: _Optional[str] = ..., timestamp: _Optional[int] = ..., cleared_timestamp: _Optional[int] = ..., cleared_by: _Optional[str] = ..., suspects: _Optional[_Iterable[str]] = ..., application: _Optional[str] = ..., tenant: _Optional[str] = ..., job: _Optional[str] = ...) -> None: ...

class GetSystemFaultStateRequest(_message.Message):
    __slots__ = ("request_id", "comp_name")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    comp_name: str
    def __init__(self, request_id: _Optional[str] = ..., comp_name: _Optional[str] = ...) -> None: ...

class GetSystemFaultStateReply(_message.Message):
    __slots__ = ("request_id", "error_details", "comp_name", "fault_state", "fault_uuids")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    FAULT_STATE_FIELD_NUMBER: _ClassVar[int]
    FAULT_UUIDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    comp_name: str
    fault_state: str
    fault_uuids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., comp_name: _Optional[str] = ..., fault_state: _Optional[str] = ..., fault_uuids: _Optional[_Iterable[str]] = ...) -> None: ...

class GetSystemPolicyInfoRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class GetSystemPolicyInfoReply(_message.Message):
    __slots__ = ("request_id", "error_details", "error_type", "fault_type", "count", "window_s", "action", "severity", "fault_desc", "fault_detail_desc", "recovery_act")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    FAULT_TYPE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    FAULT_DESC_FIELD_NUMBER: _ClassVar[int]
    FAULT_DETAIL_DESC_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_ACT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    error_type: str
    fault_type: str
    count: int
    window_s: float
    action: str
    severity: str
    fault_desc: str
    fault_detail_desc: str
    recovery_act: str
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., error_type: _Optional[str] = ..., fault_type: _Optional[str] = ..., count: _Optional[int] = ..., window_s: _Optional[float] = ..., action: _Optional[str] = ..., severity: _Optional[str] = ..., fault_desc: _Optional[str] = ..., fault_detail_desc: _Optional[str] = ..., recovery_act: _Optional[str] = ...) -> None: ...

class GetPerfCounterRequest(_message.Message):
    __slots__ = ("request_id", "kinds", "comp_name")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    kinds: _containers.RepeatedScalarFieldContainer[CounterKind]
    comp_name: str
    def __init__(self, request_id: _Optional[str] = ..., kinds: _Optional[_Iterable[_Union[CounterKind, str]]] = ..., comp_name: _Optional[str] = ...) -> None: ...

class GetPerfCounterReply(_message.Message):
    __slots__ = ("request_id", "error_details", "time_ns", "rdus", "tiles", "applications")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    RDUS_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    time_ns: int
    rdus: _containers.RepeatedCompositeFieldContainer[RDUCounters]
    tiles: _containers.RepeatedCompositeFieldContainer[TileCounters]
    applications: _containers.RepeatedCompositeFieldContainer[ApplicationCounters]
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., time_ns: _Optional[int] = ..., rdus: _Optional[_Iterable[_Union[RDUCounters, _Mapping]]] = ..., tiles: _Optional[_Iterable[_Union[TileCounters, _Mapping]]] = ..., applications: _Optional[_Iterable[_Union[ApplicationCounters, _Mapping]]] = ...) -> None: ...

class RDUCounters(_message.Message):
    __slots__ = ("comp_name", "rdu", "ddr_read_bytes", "ddr_written_bytes", "pcie_rx_bytes", "pcie_tx_bytes", "pcie_replays")
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    RDU_FIELD_NUMBER: _ClassVar[int]
    DDR_READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    DDR_WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    PCIE_RX_BYTES_FIELD_NUMBER: _ClassVar[int]
    PCIE_TX_BYTES_FIELD_NUMBER: _ClassVar[int]
    PCIE_REPLAYS_FIELD_NUMBER: _ClassVar[int]
    comp_name: str
    rdu: int
    ddr_read_bytes: int
    ddr_written_bytes: int
    pcie_rx_bytes: int
    pcie_tx_bytes: int
    pcie_replays: int
    def __init__(self, comp_name: _Optional[str] = ..., rdu: _Optional[int] = ..., ddr_read_bytes: _Optional[int] = ..., ddr_written_bytes: _Optional[int] = ..., pcie_rx_bytes: _Optional[int] = ..., pcie_tx_bytes: _Optional[int] = ..., pcie_replays: _Optional[int] = ...) -> None: ...

class TileCounters(_message.Message):
    __slots__ = ("comp_name", "rdu", "tile", "lease", "times")
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    RDU_FIELD_NUMBER: _ClassVar[int]
    TILE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    comp_name: str
    rdu: int
    tile: int
    lease: str
    times: PhaseTimes
    def __init__(self, comp_name: _Optional[str] = ..., rdu: _Optional[int] = ..., tile: _Optional[int] = ..., lease: _Optional[str] = ..., times: _Optional[_Union[PhaseTimes, _Mapping]] = ...) -> None: ...

class PhaseTimes(_message.Message):
    __slots__ = ("exec_ns", "pload_ns", "aload_ns", "chkpt_ns", "quiesce_ns")
    EXEC_NS_FIELD_NUMBER: _ClassVar[int]
    PLOAD_NS_FIELD_NUMBER: _ClassVar[int]
    ALOAD_NS_FIELD_NUMBER: _ClassVar[int]
    CHKPT_NS_FIELD_NUMBER: _ClassVar[int]
    QUIESCE_NS_FIELD_NUMBER: _ClassVar[int]
    exec_ns: int
    pload_ns: int
    aload_ns: int
    chkpt_ns: int
    quiesce_ns: int
    def __init__(self, exec_ns: _Optional[int] = ..., pload_ns: _Optional[int] = ..., aload_ns: _Optional[int] = ..., chkpt_ns: _Optional[int] = ..., quiesce_ns: _Optional[int] = ...) -> None: ...

class ApplicationCounters(_message.Message):
    __slots__ = ("lease", "application", "tenant", "job", "user", "pid", "command", "phase", "tiles", "times", "ddr_read_bytes", "ddr_written_bytes", "pcie_rx_bytes", "pcie_tx_bytes", "runs", "sections", "cycles", "flops", "host_seconds")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    DDR_READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    DDR_WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    PCIE_RX_BYTES_FIELD_NUMBER: _ClassVar[int]
    PCIE_TX_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    CYCLES_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    HOST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    lease: str
    application: str
    tenant: str
    job: str
    user: str
    pid: int
    command: str
    phase: str
    tiles: _containers.RepeatedScalarFieldContainer[str]
    times: PhaseTimes
    ddr_read_bytes: int
    ddr_written_bytes: int
    pcie_rx_bytes: int
    pcie_tx_bytes: int
    runs: int
    sections: int
    cycles: int
    flops: int
    host_seconds: float
    def __init__(self, lease: _Optional[str] = ..., application: _Optional[str] = ..., tenant: _Optional[str] = ..., job: _Optional[str] = ..., user: _Optional[str] = ..., pid: _Optional[int] = ..., command: _Optional[str] = ..., phase: _Optional[str] = ..., tiles: _Optional[_Iterable[str]] = ..., times: _Optional[_Union[PhaseTimes, _Mapping]] = ..., ddr_read_bytes: _Optional[int] = ..., ddr_written_bytes: _Optional[int] = ..., pcie_rx_bytes: _Optional[int] = ..., pcie_tx_bytes: _Optional[int] = ..., runs: _Optional[int] = ..., sections: _Optional[int] = ..., cycles: _Optional[int] = ..., flops: _Optional[int] = ..., host_seconds: _Optional[float] = ...) -> None: ...

class GetRouteRequest(_message.Message):
    __slots__ = ("request_id", "comp_name")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    comp_name: str
    def __init__(self, request_id: _Optional[str] = ..., comp_name: _Optional[str] = ...) -> None: ...

class GetRouteReply(_message.Message):
    __slots__ = ("request_id", "error_details", "routes")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    routes: _containers.RepeatedCompositeFieldContainer[Route]
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., routes: _Optional[_Iterable[_Union[Route, _Mapping]]] = ...) -> None: ...

class Route(_message.Message):
    __slots__ = ("source", "destination", "expected", "actual", "is_up")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    ACTUAL_FIELD_NUMBER: _ClassVar[int]
    IS_UP_FIELD_NUMBER: _ClassVar[int]
    source: str
    destination: str
    expected: _containers.RepeatedScalarFieldContainer[str]
    actual: _containers.RepeatedScalarFieldContainer[str]
    is_up: bool
    def __init__(self, source: _Optional[str] = ..., destination: _Optional[str] = ..., expected: _Optional[_Iterable[str]] = ..., actual: _Optional[_Iterable[str]] = ..., is_up: _Optional[bool] = ...) -> None: ...

class ClearSystemFaultRequest(_message.Message):
    __slots__ = ("request_id", "fault_uuids")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FAULT_UUIDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    fault_uuids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., fault_uuids: _Optional[_Iterable[str]] = ...) -> None: ...

class ClearSystemFaultReply(_message.Message):
    __slots__ = ("request_id", "error_details", "fault_uuid", "message", "fault", "returned_fault_uuid")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    FAULT_UUID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FAULT_UUID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    fault_uuid: str
    message: str
    fault: Fault
    returned_fault_uuid: str
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., fault_uuid: _Optional[str] = ..., message: _Optional[str] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ..., returned_fault_uuid: _Optional[str] = ...) -> None: ...

class ResetRDURequest(_message.Message):
    __slots__ = ("request_id", "comp_names")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    COMP_NAMES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    comp_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., comp_names: _Optional[_Iterable[str]] = ...) -> None: ...

class ResetRDUReply(_message.Message):
    __slots__ = ("request_id", "error_details", "comp_name", "message", "event", "outcome", "timestamp")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    comp_name: str
    message: str
    event: str
    outcome: str
    timestamp: int
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., comp_name: _Optional[str] = ..., message: _Optional[str] = ..., event: _Optional[str] = ..., outcome: _Optional[str] = ..., timestamp: _Optional[int] = ...) -> None: ...

class InjectRequest(_message.Message):
    __slots__ = ("request_id", "events")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    events: _containers.RepeatedCompositeFieldContainer[Injection]
    def __init__(self, request_id: _Optional[str] = ..., events: _Optional[_Iterable[_Union[Injection, _Mapping]]] = ...) -> None: ...

class Injection(_message.Message):
    __slots__ = ("class_name", "comp_name", "count", "seed", "data")
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    class_name: str
    comp_name: str
    count: int
    seed: int
    data: str
    def __init__(self, class_name: _Optional[str] = ..., comp_name: _Optional[str] = ..., count: _Optional[int] = ..., seed: _Optional[int] = ..., data: _Optional[str] = ...) -> None: ...

class InjectReply(_message.Message):
    __slots__ = ("request_id", "error_details", "err_uuids", "fault_uuids")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    ERR_UUIDS_FIELD_NUMBER: _ClassVar[int]
    FAULT_UUIDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    err_uuids: _containers.RepeatedScalarFieldContainer[str]
    fault_uuids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., err_uuids: _Optional[_Iterable[str]] = ..., fault_uuids: _Optional[_Iterable[str]] = ...) -> None: ...

class RepairRequest(_message.Message):
    __slots__ = ("request_id", "comp_name")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    comp_name: str
    def __init__(self, request_id: _Optional[str] = ..., comp_name: _Optional[str] = ...) -> None: ...

class RepairReply(_message.Message):
    __slots__ = ("request_id", "error_details", "repaired", "cleared_fault_uuids")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FAULT_UUIDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    repaired: int
    cleared_fault_uuids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., repaired: _Optional[int] = ..., cleared_fault_uuids: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("request_id", "since", "kinds", "only_new", "no_follow")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    ONLY_NEW_FIELD_NUMBER: _ClassVar[int]
    NO_FOLLOW_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    since: int
    kinds: _containers.RepeatedScalarFieldContainer[str]
    only_new: bool
    no_follow: bool
    def __init__(self, request_id: _Optional[str] = ..., since: _Optional[int] = ..., kinds: _Optional[_Iterable[str]] = ..., only_new: _Optional[bool] = ..., no_follow: _Optional[bool] = ...) -> None: ...

class WatchEventsReply(_message.Message):
    __slots__ = ("request_id", "error_details", "sequence", "timestamp", "kind", "lease", "application", "tenant", "job", "pid", "tiles", "reason", "comp_name", "err_uuid", "fault_uuid")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COMP_NAME_FIELD_NUMBER: _ClassVar[int]
    ERR_UUID_FIELD_NUMBER: _ClassVar[int]
    FAULT_UUID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    sequence: int
    timestamp: int
    kind: str
    lease: str
    application: str
    tenant: str
    job: str
    pid: int
    tiles: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    comp_name: str
    err_uuid: str
    fault_uuid: str
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., sequence: _Optional[int] = ..., timestamp: _Optional[int] = ..., kind: _Optional[str] = ..., lease: _Optional[str] = ..., application: _Optional[str] = ..., tenant: _Optional[str] = ..., job: _Optional[str] = ..., pid: _Optional[int] = ..., tiles: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., comp_name: _Optional[str] = ..., err_uuid: _Optional[str] = ..., fault_uuid: _Optional[str] = ...) -> None: ...

class ListApplicationsRequest(_message.Message):
    __slots__ = ("request_id", "limit")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    limit: int
    def __init__(self, request_id: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListApplicationsReply(_message.Message):
    __slots__ = ("request_id", "error_details", "applications")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAILS_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_details: _containers.RepeatedScalarFieldContainer[str]
    applications: _containers.RepeatedCompositeFieldContainer[Application]
    def __init__(self, request_id: _Optional[str] = ..., error_details: _Optional[_Iterable[str]] = ..., applications: _Optional[_Iterable[_Union[Application, _Mapping]]] = ...) -> None: ...

class Application(_message.Message):
    __slots__ = ("lease", "application", "tenant", "job", "user", "pid", "command", "tiles", "memory_bytes", "granted_at", "ended_at", "reason", "runs", "sections", "cycles", "flops", "bytes", "host_seconds", "fault")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GRANTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    CYCLES_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    lease: str
    application: str
    tenant: str
    job: str
    user: str
    pid: int
    command: str
    tiles: _containers.RepeatedScalarFieldContainer[str]
    memory_bytes: int
    granted_at: int
    ended_at: int
    reason: str
    runs: int
    sections: int
    cycles: int
    flops: int
    bytes: int
    host_seconds: float
    fault: str
    def __init__(self, lease: _Optional[str] = ..., application: _Optional[str] = ..., tenant: _Optional[str] = ..., job: _Optional[str] = ..., user: _Optional[str] = ..., pid: _Optional[int] = ..., command: _Optional[str] = ..., tiles: _Optional[_Iterable[str]] = ..., memory_bytes: _Optional[int] = ..., granted_at: _Optional[int] = ..., ended_at: _Optional[int] = ..., reason: _Optional[str] = ..., runs: _Optional[int] = ..., sections: _Optional[int] = ..., cycles: _Optional[int] = ..., flops: _Optional[int] = ..., bytes: _Optional[int] = ..., host_seconds: _Optional[float] = ..., fault: _Optional[str] = ...) -> None: ...
