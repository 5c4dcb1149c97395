"""An example PEF, changed ones, and a process that runs what may be anything."""
