"""Rows by column name and pictures become features, and outputs become labels: at training as at serving."""
