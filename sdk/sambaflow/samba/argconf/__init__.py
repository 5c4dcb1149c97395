"""Typed configuration of programs."""
