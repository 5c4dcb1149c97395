"""Operations of a box: requests, states and events, kept in memory while the box runs."""

from rdukit_modelbox.operations.values import Operation, OperationEvent, OperationFailure, VerbCall

__all__ = ["Operation", "OperationEvent", "OperationFailure", "VerbCall"]
