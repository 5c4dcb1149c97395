-- Version 4: what administrators keep from being allocated: cordons, drains and maintenance windows.
CREATE TABLE cordon (
  component TEXT PRIMARY KEY NOT NULL, reason TEXT NOT NULL, set_by TEXT NOT NULL, since INTEGER NOT NULL,
  is_draining INTEGER NOT NULL, deadline INTEGER
) STRICT;
CREATE TABLE maintenance (
  window_id TEXT PRIMARY KEY NOT NULL, component TEXT NOT NULL, starts_at INTEGER NOT NULL, ends_at INTEGER,
  grace_ns INTEGER, reason TEXT NOT NULL, set_by TEXT NOT NULL
) STRICT;
