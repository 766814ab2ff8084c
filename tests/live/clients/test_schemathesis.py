"""The published schemathesis sends what the server's own description allows, and what it does not.

The sandboxes are real ones of the process backend. The agent servers in them are only played: none
of their work is looked at here, and thousands of requests are to cost little.
"""

import json
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.description import METHODS
from tests.live.client import PATIENCE, LiveClient
from tests.live.clients.published import Client
from tests.live.conftest import MakeInstallation
from tests.live.installation import Installation

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(1200),
    pytest.mark.asyncio(loop_scope="session"),
]

_ROOT = Path(__file__).parents[3]
_SERVER = f"""
# It asks with bad keys, too.
[limits]
refused_per_minute = 0

[git]
check_tokens = false

[backends.process]
readable = [{json.dumps(str(_ROOT))}]

[sandboxes]
default_spec = "stand_in"

[specs.stand_in]
command = ["{{python}}", "-m", "tests.live.clients.stand_in", "{{port.agent}}"]
env = {{ PYTHONPATH = {json.dumps(str(_ROOT))} }}
ports = [{{ name = "agent" }}]
"""

_SCHEMATHESIS = """
[auth.openapi]
apiKey = { api_key = "USER_KEY" }
bearer = { bearer = "USER_KEY" }
accessToken = { api_key = "USER_KEY" }
sandboxKey = { api_key = "SANDBOX_KEY" }

[generation]
database = "none"
with-security-parameters = false

# A git hosting service or an agent server that does not answer is no failure of this server.
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 502, 503]
# What is as described is taken, or in the way is the state of something, as 404, 409 and 410 say.
positive_data_acceptance.expected-statuses = [
    "2xx", "3xx", 401, 403, 404, 409, 410, 429, 502, 503
]
"""

_CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "positive_data_acceptance",
    "ignored_auth",
)

_LEFT_OUT = {
    "DELETE /api/keys/{key_id}": "it may take away the key that all others use",
    "GET /api/v1/conversation/{conversation_id}/events/stream": "it has no end",
    "GET /api/v1/events/stream": "it has no end",
    "POST /api/v1/secrets/git-providers": "its tokens would be shown to real services",
    "POST /api/add-git-providers": "its tokens would be shown to real services",
}

_STARTING = (
    "POST /api/v1/app-conversations",
    "POST /api/v1/app-conversations/stream-start",
    "POST /api/v1/sandboxes",
    "POST /api/conversations",
    "POST /api/v1/environments",
    "PATCH /api/v1/environments/{environment_id}",
    "POST /api/v1/environments/{environment_id}/prepare",
    "POST /api/v1/attempts",
)
"""What would start a sandbox each time, and so gets only requests that are not as described."""

_ENDING = (
    "DELETE /api/v1/sandboxes/{sandbox_id}",
    "DELETE /api/v1/app-conversations/{conversation_id}",
    "DELETE /api/conversations/{conversation_id}",
    "POST /api/v1/sandboxes/{sandbox_id}/pause",
    "POST /api/conversations/{conversation_id}/stop",
)
"""What leaves nothing for the others, and so gets a sandbox and a conversation of its own."""


_REFUSED_FOR_MORE: Final = {
    "GET /api/v1/git/repositories/search": (
        400,
        "OpenAPI does not say that a parameter needs another",
    ),
    "PUT /api/automation/v1/github-app": (422, "no schema says what a private key is"),
    **dict.fromkeys(
        ("POST /api/keys", "POST /api/v1/users/{user_id}/keys"),
        (422, "no schema says that a time has not passed"),
    ),
    "POST /api/secrets": (400, "there is one of that name, which published clients know as 400"),
    **dict.fromkeys(
        (
            "PATCH /api/automation/v1/{automation_id}",
            "POST /api/automation/v1",
            "POST /api/automation/v1/preset/prompt",
        ),
        (422, "no schema says what a cron expression or a time zone is"),
    ),
    "POST /oauth/device/token": (400, "RFC 8628 has 400 for a code that is not known"),
}
"""What refuses what is as described, and why."""


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A running sandbox and the conversation in it."""

    sandbox_id: str
    conversation_id: str
    key: str


async def test_the_server_is_as_its_description_says(
    schemathesis: Client, make_installation: MakeInstallation, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(_SERVER)
    installation = await make_installation(AGENTSVC_CONFIG=str(config))
    client = installation.client()
    document = tmp_path / "openapi.json"
    document.write_bytes(_without_repeats((await client.get("/openapi.json")).body))
    settings = tmp_path / "schemathesis.toml"
    settings.write_text(_settings(installation, await _make(client), await _make(client)))
    report = tmp_path / "report.json"
    await schemathesis.call(
        *schemathesis.command,
        *("-m", "schemathesis.cli", "--config-file", str(settings), "--no-color"),
        *("run", str(document), "--url", installation.url, "--report-json-path", str(report)),
        *("--phases", "examples,coverage", "--max-time", "800", "--request-timeout", "60"),
        *("--generation-deterministic", "--no-shrink"),
        *("--checks", ",".join(_CHECKS), "--continue-on-failure"),
        time_limit=10 * PATIENCE,
    )
    seen = json.loads(report.read_text())
    described = [
        name
        for path in json.loads(document.read_text())["paths"].values()
        for name in path
        if name in METHODS
    ]
    assert seen["operations"]["total"] == len(described)
    assert seen["operations"]["tested"] == len(described) - len(_LEFT_OUT)
    assert seen["test_cases"]["generated"] > 2 * len(described)
    assert (await client.get("/ready")).status == 200


async def _make(client: LiveClient) -> Made:
    conversation_id = await client.start_conversation("work")
    made = await client.conversation(conversation_id)
    return Made(
        sandbox_id=made["sandbox_id"],
        conversation_id=conversation_id,
        key=made["session_api_key"],
    )


def _settings(installation: Installation, lasting: Made, ending: Made) -> str:
    keys = _SCHEMATHESIS.replace("USER_KEY", installation.key.reveal())
    return "\n".join(
        [
            keys.replace("SANDBOX_KEY", lasting.key),
            _parameters("[parameters]", lasting),
            *(_operation(name) + "enabled = false" for name in _LEFT_OUT),
            *(_operation(name) + 'generation.mode = "negative"' for name in _STARTING),
            *(
                _operation(name) + _taken_as_well(status)
                for name, (status, _) in _REFUSED_FOR_MORE.items()
            ),
            *(
                _operation(name) + _parameters("[operations.parameters]", ending)
                for name in _ENDING
            ),
        ]
    )


def _without_repeats(document: bytes) -> bytes:
    """Return a description without the key of repeats: all requests would have the same one."""
    described = json.loads(document)
    for item in described["paths"].values():
        for operation in item.values():
            if isinstance(operation, dict) and "parameters" in operation:
                operation["parameters"] = [
                    one for one in operation["parameters"] if one["name"] != "Idempotency-Key"
                ]
    return json.dumps(described).encode()


def _operation(name: str) -> str:
    return f'[[operations]]\ninclude-name = "{name}"\n'


def _taken_as_well(status: int) -> str:
    return (
        'checks.positive_data_acceptance.expected-statuses = ["2xx", "3xx", 401, 403, 404, 409, 410,'
        f" 429, 502, 503, {status}]"
    )


def _parameters(heading: str, made: Made) -> str:
    return (
        f'{heading}\n"path.sandbox_id" = "{made.sandbox_id}"\n'
        f'"path.conversation_id" = "{made.conversation_id}"\n'
    )
