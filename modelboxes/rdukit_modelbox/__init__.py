"""ModelBoxes: one model and one compiler version behind one interface."""
