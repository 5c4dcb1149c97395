"""An attempt in a worker: its state, its phases in order, and the outcome of an error in each."""
