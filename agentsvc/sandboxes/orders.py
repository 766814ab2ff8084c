"""Builds the order for a backend from a sandbox, its spec and the callback settings. No I/O."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from agentsvc.base import Secret, copy_to, sha256
from agentsvc.models import host_of
from agentsvc.plugin import AGENT_OUTPUT, Network, Order, RuntimeBackend, Spec
from agentsvc.plugin.egress import Address, BadHost, Mode, parse_host, parse_policy, split_port
from agentsvc.sandboxes.state import AGENT_PORT, Sandbox
from agentsvc.settings import Settings, llm_of

WEBHOOK_PATH: Final = "/api/v1/webhooks"

# After this many retries the agent server requeues the batch at the head, so it retries forever.
_WEBHOOK_RETRIES: Final = 1
_WEBHOOK_RETRY_SECONDS: Final = 1
_WEBHOOK_QUEUE: Final = 10_000


class CallbackRules(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent server reports to this server."""

    internal_url: str
    """URL at which a sandbox reaches this server, without a trailing slash."""
    flush_seconds: float
    """How long an event may be buffered before it is sent."""
    buffer_size: int = 50
    """Maximum number of events in one request."""
    git_hosts: tuple[str, ...] = ()
    """Private git hosts; sandboxes may reach those on this machine's loopback interface."""

    def seen_at(self, backend: RuntimeBackend[Any]) -> "CallbackRules":
        """Return a copy with the URL at which sandboxes of a backend reach this server."""
        url = backend.inside_url(self.internal_url)
        return msgspec.structs.replace(self, internal_url=url)


def with_models(
    spec: Spec, settings: Settings | None, known: Iterable[str] = (), *, of_admin: bool = False
) -> Spec:
    """Return the spec with access to the hosts of its user's models, whatever its network.

    A `known` host, in the syntax of `allow_hosts`, may have any address, other hosts public ones
    only; hosts of an administrator's models may also be on this machine's loopback interface.
    """
    if settings is None:
        return spec
    models = (llm_of(settings), *settings.llm_profiles.values())
    hosts = (host_of(llm.model or "", llm.base_url) for llm in models)
    policy = parse_policy(Mode.ALLOWLIST, known)

    def is_known(text: str) -> bool:
        return not policy.refuse_host(*_split(text))

    # Otherwise a user could reach any service on this machine by configuring it as a model.
    named = [text for text in hosts if _is_host(text)]
    own = [text for text in named if of_admin or is_known(text) or not _is_local(text)]
    found = dict.fromkeys((*spec.models, *own))
    near = [text for text in found if is_known(text)]
    return msgspec.structs.replace(
        spec,
        reaches=tuple(dict.fromkeys((*spec.reaches, *near))),
        models=tuple(text for text in found if text not in near),
    )


def with_local_hosts(spec: Spec, hosts: Iterable[str]) -> Spec:
    """Return the spec; with an open network it may reach those of these hosts on the loopback interface.

    Hosts are in the syntax of `allow_hosts`, with a port.
    """
    if spec.network is not Network.OPEN:
        return spec
    local = (text for text in hosts if _is_host(text) and _is_local(text))
    return msgspec.structs.replace(spec, reaches=tuple(dict.fromkeys((*spec.reaches, *local))))


def _is_host(text: str) -> bool:
    # The host of a base URL may be any text; ignore an invalid one.
    try:
        return _split(text)[1] > 0
    except BadHost:
        return False


def _is_local(text: str) -> bool:
    host = _split(text)[0]
    return host == "localhost" if isinstance(host, str) else host.is_loopback


def _split(text: str) -> tuple[str | Address, int]:
    name, port = split_port(text)
    return parse_host(name), port or 0


def make_dormant_order(spare_id: str, spec: Spec, key: Secret, rules: CallbackRules) -> Order:
    """Return the order for a sandbox that has no user yet.

    Its agent server accepts no requests before it is initialized with that key and the result of
    `make_identity`.
    """
    env = {**_environment(rules), **spec.env, "OH_DEFERRED_INIT": "1"}
    return _ordered(spare_id, spec, env, {"OH_SECRET_KEY": key})


def make_identity(session_key: Secret, rules: CallbackRules) -> dict[str, object]:
    """Return the settings that initialize the agent server of a warm pool sandbox."""
    key = session_key.reveal()
    return {
        "session_api_keys": [key],
        "secret_key": _files_key(key),
        "webhooks": [_webhook(rules)],
    }


def make_order(sandbox: Sandbox, rules: CallbackRules, client_env: Mapping[str, Secret]) -> Order:
    """Return the order for a sandbox; deterministic for the same sandbox.

    `client_env` are variables that the client added; those of the spec take precedence.
    """
    spec = sandbox.spec
    key = sandbox.session_key.reveal()
    webhook = {f"OH_WEBHOOKS_0_{name.upper()}": str(it) for name, it in _webhook(rules).items()}
    env = {**_environment(rules), **webhook, **spec.env}
    return _ordered(
        sandbox.id,
        spec,
        env,
        {
            **{name: value for name, value in client_env.items() if name not in spec.env},
            "OH_SESSION_API_KEYS_0": Secret(key),
            # The agent server encrypts its files with this key. It is not the session key itself,
            # so that a new session key would not make its files unreadable.
            "OH_SECRET_KEY": Secret(_files_key(key)),
        },
    )


def _environment(rules: CallbackRules) -> dict[str, str]:
    return {
        # Events carry the sandbox's local time without a zone.
        "TZ": "UTC",
        **AGENT_OUTPUT,
        "OH_ALLOW_CORS_ORIGINS_0": rules.internal_url,
        # Only one agent server uses these files at a time. With leases, a new one could take a
        # killed predecessor for another owner, and would not load its conversations for 45 s.
        "OH_LEASE_TTL_SECONDS": "0",
    }


def _webhook(rules: CallbackRules) -> dict[str, object]:
    return {
        "base_url": rules.internal_url + WEBHOOK_PATH,
        "event_buffer_size": rules.buffer_size,
        "flush_delay": rules.flush_seconds,
        "num_retries": _WEBHOOK_RETRIES,
        "retry_delay": _WEBHOOK_RETRY_SECONDS,
        "max_queue_size": _WEBHOOK_QUEUE,
    }


def _files_key(session_key: str) -> str:
    return sha256(f"agent-server-files:{session_key}")


def _ordered(
    sandbox_id: str, spec: Spec, env: Mapping[str, str], secret_env: Mapping[str, Secret]
) -> Order:
    if any(port.name == AGENT_PORT for port in spec.ports):
        # Programs in the sandbox use it to find the agent server.
        env = {"AGENT_SERVER_PORT": f"{{port.{AGENT_PORT}}}", **env}
    return copy_to(Order, spec, sandbox_id=sandbox_id, env=dict(env), secret_env=dict(secret_env))
