"""Programs of the process backend, run in processes of their own with the standard library alone.

`shim` is the parent of everything in one sandbox, `inside` the first process within bubblewrap, `warm` the
fork server; `joining` and `spaces` run before bubblewrap or within it. They are imported without the
`__init__` of the plugin, so nothing here imports the server; see `bubblewrap.running`.
"""
