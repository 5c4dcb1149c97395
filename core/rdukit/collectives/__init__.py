"""Planned collectives between RDUs: link topologies, times of algorithms, and the choice of one. Pure.

Compiler, runtime and command line use it for projections, so it belongs to core and imports none of them.
"""
