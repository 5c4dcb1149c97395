"""Executes sections: portable kernels as generated operator code, native ones as libraries."""
