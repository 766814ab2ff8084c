"""Sandboxes on other machines: behind a remote runtime API, or at another agentsvc.

`runtime_api` and `server` are the two backends; `service_backend` is their shared base, `calls`
their HTTP client.
"""

from agentsvc.plugin import offers

agentsvc_register_backends = offers(
    f"{__name__}.runtime_api:RemoteBackend", f"{__name__}.server:ServerBackend"
)
agentsvc_register_specs = offers(
    f"{__name__}.runtime_api:RUNTIME_SPEC", f"{__name__}.server:SERVER_SPEC"
)
