"""A run whose task is a command, in a real sandbox, while the server is killed."""

import pytest

from tests.http.v1.test_automations import are, create, wait_for_runs
from tests.live.conftest import MakeInstallation
from tests.live.installation import eventually

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_a_command_is_run_once_and_ends_while_the_server_is_away(
    make_installation: MakeInstallation,
) -> None:
    installation = await make_installation()
    client = installation.client()
    await client.save_settings()
    command = "echo begun >>marks.txt; pwd; sleep 6; wc -l <marks.txt; exit 5"
    made = await create(client, {"type": "manual"}, prompt=None, command=command, keep_alive=True)
    await client.post(f"/api/automation/v1/{made['id']}/dispatch")

    def logs() -> list[str]:
        roots = installation.sandbox_dirs()
        return [
            file.read_text() for root in roots for file in root.rglob("marks.txt") if file.is_file()
        ]

    await eventually(lambda: logs() == ["begun\n"], "the beginning")
    await installation.kill()
    await installation.start()
    [run] = await wait_for_runs(client, made["id"], are("FAILED"), seconds=60)
    code, place, lines = run["result"].splitlines()
    assert (code, lines.strip(), logs()) == ("exit code 5", "1", ["begun\n"])
    assert place.startswith("/")
