"""The fence around untrusted programs: the files, system calls and resources that they may use. Linux.

``spec.py`` describes a fence, ``seccomp.py`` lists the refused system calls, ``launcher.py`` puts the fence up, and
``probe.py`` tests it on this machine. Read ``docs/box-fence.md``.
"""
