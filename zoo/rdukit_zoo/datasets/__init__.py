"""Data sets that the zoo carries, each a module with ``load`` and a folder with its files, attribution and licence."""
