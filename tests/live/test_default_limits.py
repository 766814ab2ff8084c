"""Sandboxes of two users by the default spec: whatever one does to the machine, the other goes on."""

import json
from typing import Any

import pytest
from process import groups

from tests.live.client import LiveClient
from tests.live.conftest import MakeInstallation, unavailable
from tests.live.console.users import new_user
from tests.live.installation import Installation
from tests.service import Answer

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(400),
    pytest.mark.asyncio(loop_scope="session"),
]

MEGABYTE = 1024 * 1024
SMALL = {"memory_bytes": 900 * MEGABYTE, "disk_bytes": 48 * MEGABYTE}
"""In place of the usual 4 GiB and 10 GiB, which would take their time to fill."""

BOMB = """
import os, time
children = 0
try:
    while children < 6000:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        children += 1
except OSError:
    pass
print(children, flush=True)
os.killpg(0, 9)
"""
HOG = 'print(len(b"x" * (1200 << 20)))'
FILES = """
held = []
try:
    while len(held) < 200_000:
        held.append(open("/dev/null"))
except OSError:
    pass
print(len(held))
"""
FILLER = """
import os
for number in range(64):
    with open(f"part-{number}", "wb") as file:
        file.write(os.urandom(4 << 20))
    os.sync()
"""


async def in_sandbox(client: LiveClient, sandbox: dict[str, Any], script: str) -> dict[str, Any]:
    """Run a Python script by a command of the agent server, and return how it ended."""
    answer = await sent(client, sandbox, script)
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def sent(client: LiveClient, sandbox: dict[str, Any], script: str) -> Answer:
    path = f"/sandboxes/{sandbox['id']}/agent"
    body = {"command": f"exec setsid -w python3 -Ic '{script}'", "timeout": 60}
    return await client.post(f"{path}/api/bash/execute_bash_command", json=body)


async def begun(own: Installation) -> tuple[LiveClient, dict[str, Any]]:
    client = await new_user(own)
    made = (await client.post("/api/v1/sandboxes")).json()
    sandbox = await client.wait_for_sandbox(made["id"], "RUNNING", time_limit=100)
    return client, sandbox


async def test_what_one_sandbox_does_to_the_machine_another_does_not_feel(
    make_installation: MakeInstallation,
) -> None:
    if not groups.find().limits() >= {"memory_bytes", "pids"}:
        unavailable("control groups cannot be used here")
    own = await make_installation(AGENTSVC_SANDBOXES__LIMITS=json.dumps(SMALL))
    mine, attacker = await begun(own)
    other, victim = await begun(own)
    assert set(attacker["enforced_limits"]) == {"memory_bytes", "disk_bytes", "pids", "open_files"}

    async def goes_on() -> None:
        said = await in_sandbox(other, victim, 'import subprocess; subprocess.run(["true"])')
        assert said["exit_code"] == 0, said

    await goes_on()
    said = await in_sandbox(mine, attacker, BOMB)
    assert 0 < int(said["stdout"]) < 2048
    await goes_on()
    said = await in_sandbox(mine, attacker, FILES)
    assert int(said["stdout"]) < 65536
    said = await in_sandbox(mine, attacker, HOG)
    assert said["exit_code"] != 0
    await goes_on()
    # Its sandbox is ended for it, often before it has answered.
    assert (await sent(mine, attacker, FILLER)).status in {200, 502}
    failed = await mine.wait_for_sandbox(attacker["id"], "ERROR", time_limit=60)
    assert failed["status_cause"] == "disk_full"
    await goes_on()
    shown = await other.sandbox(victim["id"])
    assert shown is not None
    assert (shown["status"], shown["status_detail"]) == ("RUNNING", None)
