"""Configures a pod of a warm pool once it has been claimed, by a script in the pod.

The configuration is sent over the standard input of a command, because API servers log command
lines. A pod keeps its first configuration.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Final

from agentsvc.base import BackendUnavailable, Conflict

from .kube import api, commands, objects
from .resources import START, Json

_CHUNK: Final = 32768
_ANSWER_BYTES: Final = 1000
_STATUS: Final = 3
_RECEIVE: Final = """\
cd "${AGENTSVC_DIR:?}" && umask 077 || exit 3
[ ! -f start ] || exit 0
head -c "$0" >start.$$
[ "$(wc -c <start.$$)" -eq "$0" ] && mv start.$$ start || { rm -f start.$$; exit 4; }
"""
_RUN: Final = 'begin=; . "${AGENTSVC_DIR:?}/start"; exec env "$@"'


async def send_start(way: api.Api, path: str, secret: Json) -> None:
    """Send a pod the start script of its secret; raises Conflict if the pod refuses it."""
    try:
        text = base64.b64decode((secret.get("data") or {})[START], validate=True)
    except (LookupError, TypeError, AttributeError, binascii.Error, ValueError) as exc:
        raise Conflict("the secret of the sandbox has no valid start script") from exc
    query = [
        ("container", objects.CONTAINER),
        *((one, "true") for one in ("stdin", "stdout", "stderr")),
    ]
    query += [("command", part) for part in ("/bin/sh", "-c", _RECEIVE, str(len(text)))]
    output = commands.Output(limit=_ANSWER_BYTES)
    async with way.socket(path, query) as socket:
        for begin in range(0, len(text), _CHUNK):
            await socket.send_bytes(b"\0" + text[begin : begin + _CHUNK])
        async for message in socket:
            if not isinstance(message.data, bytes) or not message.data:
                break
            channel, data = message.data[0], message.data[1:]
            if channel == _STATUS:
                if commands.exit_code_of(data) == 0:
                    return
                why = output.stderr.decode(errors="replace").strip()
                raise Conflict(f"its pod refuses its configuration: {why or 'no reason'}")
            output.add(channel, data)
    raise BackendUnavailable("The connection to the pod was lost while it was configured")


def wrap_command(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return a command with the sandbox's environment, which its pod was not created with."""
    variables = [f"{name}={value}" for name, value in env.items()]
    return ["/bin/sh", "-c", _RUN, "sh", *variables, *argv]
