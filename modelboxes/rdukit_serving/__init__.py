"""Inference at once: PEFs stay loaded in processes of their own, batched, behind the Open Inference Protocol.

The server's process never imports torch. A request is read by ``rest`` or ``rpc``, checked by ``checks``, waits in
``batching``, and crosses to the process in ``device`` through shared memory.
"""
