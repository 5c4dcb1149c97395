"""Recipes of boxes: how a model is trained, tuned, evaluated and asked, as data, and what that gave."""
