"""Tables: rows by column name become features, and outputs become labels; the same at training and at serving."""
