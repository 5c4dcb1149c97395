"""Mechanisms that only buy speed, each with a switch; serving is correct without them."""
