"""Files that ``rdukit box new`` copies."""
