"""Where the C++ compiler is."""

import os
import shutil


def find_cpp_compiler() -> str | None:
    """Path of the C++ compiler that torch would use, or None."""
    return shutil.which(os.environ.get("CXX") or "g++")
