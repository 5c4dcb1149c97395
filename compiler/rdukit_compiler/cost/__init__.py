"""The cost model: what operators do, and what a section would take on the emulated chip. Projections, never measured."""
