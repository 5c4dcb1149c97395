"""Comparisons with PyTorch and other common tools: one module per question, each run in its own process. See
``model.py``."""
