"""The fence round a program that nobody vouches for: what it can read, write, call and use. Linux.

``spec.py`` describes a fence, ``seccomp.py`` the system calls that it refuses, ``launcher.py`` puts it up, ``probe.py``
tries whether it holds here. Read ``docs/box-fence.md``.
"""
