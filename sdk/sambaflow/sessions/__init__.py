"""Parts of a session: compiling, loading, running, and several graphs in one PEF."""
