"""The machine and this process: the processor, its quota, a parent's death, logging."""
