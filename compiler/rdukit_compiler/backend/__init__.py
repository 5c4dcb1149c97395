"""From a section's operators to its kernel: differentiated, portable, and native where a C++ compiler is found."""
