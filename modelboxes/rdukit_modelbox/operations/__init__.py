"""Operations of a box: requests, states, events and webhook deliveries, kept in the state folder."""

from rdukit_modelbox.operations.values import (
    Delivery,
    Operation,
    OperationEvent,
    OperationFailure,
    VerbCall,
    Webhook,
)

__all__ = ["Delivery", "Operation", "OperationEvent", "OperationFailure", "VerbCall", "Webhook"]
