"""Sandboxes as local processes, inside bubblewrap where it works.

Begin with `backend`. `zygote` starts the fork server; `programs` holds what runs in processes of its own.
"""

from agentsvc.plugin import offers

agentsvc_register_backends = offers(f"{__name__}.backend:ProcessBackend")
agentsvc_register_specs = offers(f"{__name__}.specs:DEFAULT_SPEC")
