"""Inference at once: models stay loaded in processes of their own, batched, behind the Open Inference Protocol.

The box's process never imports torch. Requests meet ``checks``, wait in a ``batcher``, cross to a ``device_process``
through shared memory, and come back as bytes; ``oip_rest`` and ``oip_grpc`` are the two wires.
"""
