"""The profile of a program: one step measured, modelled and drawn."""
