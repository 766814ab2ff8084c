"""Sandboxes as local processes, inside bubblewrap if it works.

Start reading at `backend`. `zygote` starts the fork server; `programs` has the programs that run in
processes of their own.
"""

from agentsvc.plugin import offers

agentsvc_register_backends = offers(f"{__name__}.backend:ProcessBackend")
agentsvc_register_specs = offers(f"{__name__}.specs:DEFAULT_SPEC")
