-- Version 1: errors, faults, inventory, policies, hang log, operational states, events. Times: nanoseconds since the epoch.
CREATE TABLE meta (key TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE error (
  err_uuid TEXT PRIMARY KEY NOT NULL, err_type TEXT NOT NULL, err_type_desc TEXT NOT NULL, err_data TEXT NOT NULL,
  err_count INTEGER NOT NULL, orig_timestamp INTEGER NOT NULL, last_timestamp INTEGER NOT NULL,
  comp_name TEXT NOT NULL, fault_uuid TEXT
) STRICT;
CREATE TABLE fault (
  fault_uuid TEXT PRIMARY KEY NOT NULL, fault_type TEXT NOT NULL, fault_state TEXT NOT NULL, severity TEXT NOT NULL,
  comp_name TEXT NOT NULL, comp_ser_num TEXT NOT NULL, fault_desc TEXT NOT NULL, recovery_act TEXT NOT NULL,
  action TEXT NOT NULL, err_uuid TEXT NOT NULL, timestamp INTEGER NOT NULL, cleared_timestamp INTEGER,
  cleared_by TEXT
) STRICT;
CREATE TABLE suspects (
  fault_uuid TEXT NOT NULL, ord INTEGER NOT NULL, comp_name TEXT NOT NULL, PRIMARY KEY (fault_uuid, ord)
) STRICT, WITHOUT ROWID;
CREATE TABLE inventory (
  comp_name TEXT PRIMARY KEY NOT NULL, ord INTEGER NOT NULL, kind TEXT NOT NULL, parent TEXT NOT NULL,
  serial TEXT NOT NULL, part TEXT NOT NULL, presence TEXT NOT NULL, health TEXT NOT NULL, size_bytes INTEGER NOT NULL
) STRICT;
CREATE TABLE policy (
  error_type TEXT PRIMARY KEY NOT NULL, fault_type TEXT NOT NULL, count INTEGER NOT NULL, window_s INTEGER NOT NULL,
  action TEXT NOT NULL, severity TEXT NOT NULL, fault_desc TEXT NOT NULL, fault_detail_desc TEXT NOT NULL,
  recovery_act TEXT NOT NULL
) STRICT;
CREATE TABLE hang_log (
  number INTEGER PRIMARY KEY NOT NULL, rdu INTEGER NOT NULL, comp_name TEXT NOT NULL, timestamp INTEGER NOT NULL,
  event TEXT NOT NULL, outcome TEXT NOT NULL
) STRICT;
CREATE TABLE op_state (
  rdu INTEGER PRIMARY KEY NOT NULL, comp_name TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
  since INTEGER NOT NULL, available_tiles INTEGER NOT NULL, perfect INTEGER NOT NULL
) STRICT;
CREATE TABLE condition (
  component TEXT NOT NULL, class_name TEXT NOT NULL, since INTEGER NOT NULL, resets_that_fail INTEGER,
  data TEXT NOT NULL, PRIMARY KEY (component, class_name)
) STRICT, WITHOUT ROWID;
CREATE TABLE events (number INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL) STRICT;
