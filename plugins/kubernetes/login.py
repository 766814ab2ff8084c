"""Credentials for a cluster: from a kubeconfig, a program that it names, or a pod's account.

Only this module calls the client library, in a thread, because it reads files and runs programs.
"""

import asyncio
import os
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from agentsvc.base import BackendUnavailable, Secret, now

from .failures import one_line
from .settings import ACCOUNT, KubernetesConfig, is_in_cluster

_EARLIER: Final = timedelta(seconds=60)
_DEFAULT: Final = "default"


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The API server's address, and credentials for it that may expire."""

    url: str
    namespace: str
    token: Secret
    """The complete value of the Authorization header; empty for no header."""
    ssl_context: ssl.SSLContext | None = None
    server_name: str | None = None
    proxy: str | None = None
    expires_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        """Whether the credentials have expired, or expire within 60 seconds."""
        return self.expires_at is not None and self.expires_at - _EARLIER <= now()


async def log_in(
    config: KubernetesConfig,
    *,
    environment: Mapping[str, str] = os.environ,
    account: Path = ACCOUNT,
) -> Access:
    """Read the current credentials; raises BackendUnavailable if they cannot be loaded."""
    try:
        async with asyncio.timeout(config.request_seconds):
            return await asyncio.to_thread(_in_thread, config, environment, account)
    except TimeoutError as exc:
        raise BackendUnavailable("The program that gives the cluster's credentials hangs") from exc


def _in_thread(config: KubernetesConfig, environment: Mapping[str, str], account: Path) -> Access:
    import yaml  # noqa: PLC0415  # it comes with the client library
    from kubernetes_asyncio.config import ConfigException  # noqa: PLC0415  # it takes a second

    # What is no kubeconfig at all ends anywhere in the library.
    wrong = (ValueError, LookupError, TypeError, AttributeError, AssertionError, RuntimeError)
    try:
        return asyncio.run(_load(config, environment, account))
    except (ConfigException, yaml.YAMLError, OSError, *wrong) as exc:
        raise BackendUnavailable(
            f"There is no way into a cluster: {one_line(str(exc))}; set `kubeconfig`",
            detail=type(exc).__name__,
        ) from exc


async def _load(config: KubernetesConfig, environment: Mapping[str, str], account: Path) -> Access:
    from kubernetes_asyncio import client  # noqa: PLC0415  # as above
    from kubernetes_asyncio.config import load_kube_config  # noqa: PLC0415
    from kubernetes_asyncio.config.incluster_config import InClusterConfigLoader  # noqa: PLC0415

    found = client.Configuration()
    expires_at = None
    if is_in_cluster(config, environment, account):
        InClusterConfigLoader(
            str(account / "token"),
            str(account / "ca.crt"),
            try_refresh_token=False,
            environ=dict(environment),
        ).load_and_set(found)
        namespace = _read(account / "namespace")
    else:
        loader = await load_kube_config(
            config_file=_kubeconfig(config, environment),
            context=config.context or None,
            client_configuration=found,
            persist_config=False,
        )
        expires_at = getattr(loader, "exec_plugin_expiry", None)
        context = (loader.current_context or {}).get("context") or {}
        namespace = str(context.get("namespace") or "")
    return Access(
        url=str(found.host).rstrip("/"),
        namespace=config.namespace or namespace or _DEFAULT,
        token=Secret(str(found.api_key.get("BearerToken") or "").strip()),
        ssl_context=_ssl_context(found),
        server_name=found.tls_server_name or None,
        proxy=found.proxy or None,
        expires_at=expires_at.astimezone(UTC) if expires_at else None,
    )


def _read(file: Path) -> str:
    return file.read_text().strip() if file.is_file() else ""


def _kubeconfig(config: KubernetesConfig, environment: Mapping[str, str]) -> str:
    path = config.kubeconfig or environment.get("KUBECONFIG") or "~/.kube/config"
    files = [str(Path(one).expanduser()) for one in path.split(os.pathsep) if one]
    if not any(Path(one).is_file() for one in files):
        raise FileNotFoundError(f"there is no kubeconfig at {path}")
    return os.pathsep.join(files)


def _ssl_context(found: Any) -> ssl.SSLContext | None:
    if not str(found.host).startswith("https"):
        return None
    context = ssl.create_default_context(cafile=found.ssl_ca_cert)
    # Clusters sign with authorities of their own, which rarely keep to every letter.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if found.cert_file:
        context.load_cert_chain(found.cert_file, keyfile=found.key_file)
    if not found.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
