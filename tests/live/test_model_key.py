"""The key of the model, looked for inside a real sandbox: there is but a token for the server."""

import base64

import msgspec
import pytest

from agentsvc.testing.llm import ScriptedModel
from tests.live.client import LiveClient
from tests.live.conftest import unavailable
from tests.live.events import outputs
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

LOOK = r"""
import glob, json, os, re, sys
key = sys.argv[1][::-1].encode()
found, looked = [], {"files": 0, "environ": 0, "cmdline": 0, "memory": 0}
def read(path):
    try:
        with open(path, "rb") as file:
            return file.read(64 << 20)
    except OSError:
        return b""
def look(kind, path, data):
    looked[kind] += bool(data)
    if key in data:
        found.append(path)
tops = [os.getcwd(), os.path.expanduser("~"), "/tmp", "/run", "/etc", "/home", "/workspace"]
for _ in range(3):
    tops.append(os.path.dirname(tops[0]))
    tops.insert(0, tops[-1])
for top in {top for top in tops if top != "/"}:
    for folder, _, files in os.walk(top):
        for path in (os.path.join(folder, name) for name in files):
            if os.path.isfile(path):
                look("files", path, read(path))
for folder in glob.glob("/proc/[0-9]*"):
    if folder == f"/proc/{os.getpid()}":
        continue
    for name in ("environ", "cmdline"):
        look(name, f"{folder}/{name}", read(f"{folder}/{name}"))
    spans = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw", read(folder + "/maps").decode(), re.M)
    for start, end in ((int(one, 16), int(two, 16)) for one, two in spans):
        try:
            with open(folder + "/mem", "rb", 0) as memory:
                memory.seek(start)
                look("memory", f"{folder} {start:x}", memory.read(min(end - start, 64 << 20)))
        except (OSError, ValueError, OverflowError):
            pass
print(json.dumps({"found": found, "looked": looked}))
"""
"""Looks for a text, which is told backwards, in all that a sandbox sees."""


async def test_the_key_of_the_model_is_nowhere_in_a_sandbox(
    client: LiveClient, model: ScriptedModel
) -> None:
    key = model.key.reveal()
    script = base64.b64encode(LOOK.encode()).decode()
    commands = (f"echo {script} | base64 -d > look.py", f"python3 look.py {key[::-1]}")
    conversation_id = await client.start_conversation(run(*commands))
    seen = await client.wait_for_execution(conversation_id, "finished")
    sandbox = await client.sandbox(seen["sandbox_id"])
    assert sandbox is not None
    events = await client.events(conversation_id)
    said = msgspec.json.decode(outputs(events)[-1].strip().splitlines()[-1])
    # In a view of its own there are no processes but the sandbox's.
    if sandbox["isolation"] != "bubblewrap":
        unavailable("bubblewrap does not work here")
    assert said["found"] == []
    assert all(said["looked"][kind] > 0 for kind in ("files", "environ", "cmdline")), said
    agent = client.agent(seen)
    paths = (f"/api/conversations/{conversation_id}{end}" for end in ("", "/events/search"))
    told = [await agent.get(path) for path in paths]
    assert [answer.status for answer in told] == [200, 200]
    assert not any(key in text for text in (str(events), *(answer.text for answer in told)))
