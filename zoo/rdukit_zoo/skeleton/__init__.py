"""Templates of a new model of the zoo."""
