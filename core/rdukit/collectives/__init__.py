"""Collectives between RDUs, planned: machines of links, times of algorithms, and which one is chosen. Pure.

Compiler, runtime and command line all project with it, so it is here and imports none of them.
"""
