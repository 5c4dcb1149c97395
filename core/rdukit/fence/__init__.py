"""The fence round a program that nobody vouches for: what it can read, write, call and use. Linux.

``spec.py`` says what a fence is, ``system_calls.py`` and ``filter.py`` which system calls it refuses, ``launcher.py``
puts it up, ``probe.py`` tries whether it holds here. Read ``docs/job-boxes.md``.
"""
