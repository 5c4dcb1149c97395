"""Recipes of boxes: training, tuning, evaluation and inference of a model as data, with the results."""
