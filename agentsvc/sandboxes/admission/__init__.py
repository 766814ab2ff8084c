"""Admission: which sandboxes may run now, which wait, and the pool of warm ones.

Begin with `capacity`, the pure decision: `queue` applies it to the room that there is, `slots` to how many
start on this machine at a time. `warm_pool` keeps sandboxes ready, `placement`
chooses among backends.
"""
