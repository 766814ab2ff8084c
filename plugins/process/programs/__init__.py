"""Programs of the process backend, run in processes of their own with the standard library alone.

`shim` is the parent of everything in one sandbox, `inside` the first process in bubblewrap, `warm`
the fork server; `joining`, `overlay` and `spaces` are helpers of these that also run as programs.
They are imported without the plugin's `__init__`, so nothing here imports the server; see
`bubblewrap.running`.
"""
