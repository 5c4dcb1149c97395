-- Version 3: errors and faults know which of several programs of one name it was.
ALTER TABLE error ADD COLUMN lease TEXT;
ALTER TABLE error ADD COLUMN pid INTEGER;
ALTER TABLE fault ADD COLUMN lease TEXT;
ALTER TABLE fault ADD COLUMN pid INTEGER;
