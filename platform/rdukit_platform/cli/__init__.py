"""Sub-commands of ``rdukit`` that talk to the platform."""
