"""Sandboxes as containers of Docker or Podman: on this machine, by TCP with TLS, or by SSH.

Needs the extra `docker`; the client library is imported when a backend is opened.
"""

from agentsvc.plugin import offers

agentsvc_register_backends = offers(f"{__name__}.backend:DockerBackend")
agentsvc_register_specs = offers(f"{__name__}.specs:PUBLISHED", f"{__name__}.specs:OWN")
