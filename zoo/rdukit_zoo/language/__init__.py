"""Language models: a file for each architecture, with what they share in ``attention`` and ``decoder``."""
