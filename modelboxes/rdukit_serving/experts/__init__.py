"""Many experts of few architectures behind one server: bundle files, the fit in memory, and loading and eviction."""
