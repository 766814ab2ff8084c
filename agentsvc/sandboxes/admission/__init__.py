"""Admission: which sandboxes may run now, which wait, and the pool of warm ones.

Begin with `capacity`, the decision without I/O: `queue` applies it to running sandboxes, `slots` to
the conversations that start on this machine at a time. `warm_pool` keeps sandboxes ready,
`placement` chooses among backends.
"""
