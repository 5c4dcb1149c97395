"""Where a program's time goes: one step measured, modelled and drawn."""
