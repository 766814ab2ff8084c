"""What calls a public address that is this machine's own; run in a network namespace that has some.

Prints what came of each way to have the server call something, and how often it was called.
"""

import asyncio
import json
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from agentsvc.agentserver.safe_connector import Found
from agentsvc.base.errors import AgentsvcError, NotAllowed
from agentsvc.base.values import Secret
from agentsvc.domain.agent_options import Llm
from agentsvc.domain.orders import Provider
from agentsvc.git import GitProviders
from agentsvc.models.check import check_model
from agentsvc.settings.secret_store import SecretStore
from agentsvc.settings.user_secrets import ProviderToken
from agentsvc.storage.database import Database
from agentsvc.storage.vault import Vault
from tests.plugin_loading import part

if TYPE_CHECKING:
    from webhooks.sender import Sender
    from webhooks.targets import check_url
else:
    Sender = part("webhooks.sender").Sender
    check_url = part("webhooks.targets").check_url

NAME = "public.example"


async def main(address: str) -> None:
    """Have the address called in each way, by itself and by a name, and print what came of it."""
    called: list[str] = []

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.append("")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async def look_up(_host: str, _port: int) -> Found:
        return [(int(socket.AF_INET6 if ":" in address else socket.AF_INET), address)]

    server = await asyncio.start_server(answer, address, 0)
    port = server.sockets[0].getsockname()[1]
    shown = f"[{address}]" if ":" in address else address
    said = {}
    sender = Sender(time_limit=5, allows_private=False, most=2, lookup=look_up)
    for host in (shown, NAME):
        url = f"http://{host}:{port}/"
        try:
            check_url(url, allows_private=False)
            said[f"webhook registered at {host}"] = "yes"
        except NotAllowed as exc:
            said[f"webhook registered at {host}"] = exc.message
        said[f"webhook at {host}"] = (await sender.send(url, b"{}", {})).reason
        llm = Llm(model="openai/x", base_url=url, api_key=Secret("k"))
        said[f"model at {host}"] = (await check_model(llm, (), lookup=look_up)).message
    await sender.close()
    said["git host"] = await ask_git(f"http://{shown}:{port}")
    server.close()
    print(json.dumps({"said": said, "called": len(called)}))  # noqa: T201  # what the test reads


async def ask_git(host: str) -> str:
    """Show a token to a git host, and return how that failed."""
    with tempfile.TemporaryDirectory() as directory:
        database = await Database.open(Path(directory, "a.db"))
        providers = GitProviders(SecretStore(database, Vault.open(Path(directory, "a.key"))))
        await providers.open()
        try:
            token = ProviderToken(token=Secret("t"), host=host)
            await providers.identify(Provider.GITLAB, token)
        except AgentsvcError as exc:
            return exc.message
        finally:
            await providers.close()
            await database.close()
    return ""


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
