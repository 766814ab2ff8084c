"""What the tests of starts share: stored tasks, failures, and damage."""

from typing import Any

from agentsvc.agentserver.responses import CommandResult
from agentsvc.config.data_directory import DataDirectory
from agentsvc.conversations.model import StartTask
from agentsvc.http.keys import CONVERSATIONS, DATABASE, KEYRING
from agentsvc.storage.vault import Vault
from tests.service import Client, Service

PATH = "/api/v1/app-conversations"


async def admin_of(service: Service) -> str:
    user_id = await service.app[KEYRING].find_user("admin")
    assert user_id is not None
    return user_id


async def stored_task(service: Service, task_id: str) -> StartTask:
    tasks = await service.app[CONVERSATIONS].starts.find_many(await admin_of(service), [task_id])
    assert tasks[0] is not None
    return tasks[0]


async def failure(client: Client, **fields: Any) -> str:
    """Start a conversation that cannot be, and return what is said about it."""
    task = await client.start_task(**fields)
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "ERROR"
    assert ended["app_conversation_id"] is None
    return str(ended["detail"])


def failed(text: str, exit_code: int = 128) -> CommandResult:
    return CommandResult(exit_code=exit_code, stdout="", stderr=text)


async def damage_settings(service: Service) -> None:
    """Store settings of a form that no version of the server has written."""
    vault = Vault.open(DataDirectory(path=service.data_dir).master_key)
    sealed = vault.seal(b"[]", f"settings/{await admin_of(service)}")
    await service.app[DATABASE].write(
        lambda tx: tx.run("UPDATE settings SET sealed = :sealed", {"sealed": sealed})
    )
