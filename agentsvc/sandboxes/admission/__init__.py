"""Admission: which sandboxes may run now, which wait, and the pool of warm ones.

Begin with `capacity`, the pure decision; `queue` applies it, `warm_pool` keeps sandboxes ready, `placement`
chooses among backends.
"""
