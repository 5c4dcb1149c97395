-- Version 2: errors and faults know application, tenant and job; windows survive a restart; accounting of applications.
ALTER TABLE error ADD COLUMN application TEXT;
ALTER TABLE error ADD COLUMN tenant TEXT;
ALTER TABLE error ADD COLUMN job TEXT;
ALTER TABLE error ADD COLUMN recent TEXT NOT NULL DEFAULT '[]';
ALTER TABLE fault ADD COLUMN application TEXT;
ALTER TABLE fault ADD COLUMN tenant TEXT;
ALTER TABLE fault ADD COLUMN job TEXT;
CREATE TABLE applications (lease TEXT PRIMARY KEY NOT NULL, ended_at INTEGER NOT NULL, accounting TEXT NOT NULL) STRICT;
CREATE INDEX applications_by_end ON applications (ended_at);
