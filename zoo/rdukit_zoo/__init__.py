"""The model zoo: one file per model, a registry, runnable programs and data sets."""
