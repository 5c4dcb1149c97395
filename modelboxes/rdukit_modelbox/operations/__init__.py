"""Operations: what was asked, where it is, what happened to it, and whom it was told; kept in the state folder."""

from rdukit_modelbox.operations.values import (
    Delivery,
    Operation,
    OperationEvent,
    OperationFailure,
    VerbCall,
    Webhook,
)

__all__ = ["Delivery", "Operation", "OperationEvent", "OperationFailure", "VerbCall", "Webhook"]
