"""The REST wire of a box: routes of ``docs/design/wire.md``, errors in one body, progress as server-sent events."""
