-- Version 5: each row has a checksum, so that a flipped bit is noticed. Rows of earlier versions have none.
ALTER TABLE error ADD COLUMN row_sum INTEGER;
ALTER TABLE fault ADD COLUMN row_sum INTEGER;
ALTER TABLE suspects ADD COLUMN row_sum INTEGER;
ALTER TABLE inventory ADD COLUMN row_sum INTEGER;
ALTER TABLE policy ADD COLUMN row_sum INTEGER;
ALTER TABLE hang_log ADD COLUMN row_sum INTEGER;
ALTER TABLE op_state ADD COLUMN row_sum INTEGER;
ALTER TABLE condition ADD COLUMN row_sum INTEGER;
ALTER TABLE events ADD COLUMN row_sum INTEGER;
ALTER TABLE applications ADD COLUMN row_sum INTEGER;
ALTER TABLE cordon ADD COLUMN row_sum INTEGER;
ALTER TABLE maintenance ADD COLUMN row_sum INTEGER;
