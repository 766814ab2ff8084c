"""What the server's own description allows, and what it does not, sent by the published schemathesis."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.live.clients.published import Client, NotInstalled, install_python
from tests.resilience.server import Server
from tests.service import Client as Caller

SECONDS: Final = 75
_CONFIG: Final = """
[auth.openapi]
apiKey = { api_key = "%(key)s" }
bearer = { bearer = "%(key)s" }
accessToken = { api_key = "%(key)s" }
sandboxKey = { api_key = "%(sandbox_key)s" }

[generation]
database = "none"
with-security-parameters = false

[parameters]
"path.sandbox_id" = "%(sandbox_id)s"
"path.conversation_id" = "%(conversation_id)s"
"""
_LEFT_OUT: Final = (
    "DELETE /api/keys/{key_id}",
    "GET /api/v1/conversation/{conversation_id}/events/stream",
    "GET /api/v1/events/stream",
    "POST /api/v1/secrets/git-providers",
    "POST /api/add-git-providers",
    "GET /api/conversations/{conversation_id}/zip-directory",
)
"""What takes away the key of all others, has no end, shows tokens to real services, or needs a shell
in the sandbox."""

_WRONG: Final = "= FAILURES ="
"""What it writes above what is wrong; advice follows."""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: how many requests were made up, and what was wrong; or why it did not run."""

    told: str
    requests: int = 0
    failures: tuple[str, ...] = ()


async def run_schemathesis(
    server: Server, caller: Caller, conversation: dict[str, Any], directory: Path
) -> Said:
    """Have it make up requests for some time; nothing of it is installed into this environment."""
    try:
        client = await asyncio.to_thread(install_python, directory / "schemathesis", "schemathesis")
    except NotInstalled as exc:
        return Said(told=f"schemathesis could not be installed: {str(exc)[-200:]}")
    document, report = directory / "openapi.json", directory / "report.json"
    await asyncio.to_thread(document.write_bytes, (await caller.get("/openapi.json")).body)
    settings = directory / "schemathesis.toml"
    await asyncio.to_thread(settings.write_text, _settings(caller, conversation))
    failure = await _call(client, server, document, settings, report)
    seen = json.loads(await asyncio.to_thread(report.read_text)) if report.exists() else {}
    made = int(seen.get("test_cases", {}).get("generated", 0))
    return Said(
        told=f"{made:,} more made up by {client.versions}",
        requests=made,
        failures=() if failure is None else (failure,),
    )


async def _call(
    client: Client, server: Server, document: Path, settings: Path, report: Path
) -> str | None:
    """Run it; return what it says of failures, if there are any."""
    try:
        await client.call(
            *client.command,
            *("-m", "schemathesis.cli", "--config-file", str(settings), "--no-color"),
            *("run", str(document), "--url", server.url, "--report-json-path", str(report)),
            *("--phases", "coverage,fuzzing", "--max-time", str(SECONDS)),
            *("--request-timeout", "30", "--generation-deterministic", "--no-shrink"),
            *("--checks", "not_a_server_error", "--continue-on-failure"),
        )
    except AssertionError as exc:
        said = str(exc)
        return said[max(0, said.find(_WRONG)) :][:4000]
    return None


def _settings(caller: Caller, conversation: dict[str, Any]) -> str:
    known = {
        "key": caller.key,
        "sandbox_key": conversation["session_api_key"],
        "sandbox_id": conversation["sandbox_id"],
        "conversation_id": conversation["id"],
    }
    left_out = (f'[[operations]]\ninclude-name = "{name}"\nenabled = false\n' for name in _LEFT_OUT)
    return _CONFIG % known + "\n" + "".join(left_out)
