"""The process backend: sandboxes as local processes, inside bubblewrap where it works.

Begin with `process`; `shim` is the parent of everything in one sandbox, `inside` the first process within
bubblewrap, `zygote` and `warm` the fork server. Imports `plugin` and `base`, as a plugin would.
"""
