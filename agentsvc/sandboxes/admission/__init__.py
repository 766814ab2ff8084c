"""Admission: which sandboxes may run now, which wait, and the pool of warm ones."""
