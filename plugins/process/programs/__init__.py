"""Programs of the process backend, run in processes of their own with the standard library alone.

`shim` is the parent of everything in one sandbox, `inside` the first process in bubblewrap, `warm`
the fork server, `overlay` mounts layers; `joining` and `spaces` are used by these, and run as
programs before bubblewrap or within it. They are imported without the plugin's `__init__`, so
nothing here imports the server; see `bubblewrap.running`.
"""
