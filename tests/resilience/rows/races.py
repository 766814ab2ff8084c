"""What is swapped between the server's look and its use: who listens at a port, and where names lead.

At the defaults. At a port of the victim's something listens for one request at a time, while a program in
the attacker's sandbox takes every port that nobody listens at just then, and the victim asks. A program in
the attacker's sandbox swaps names in its workspace, its temporary directory and its home between a file, a
directory and links to what is another user's and the server's, as fast as it can, while the server lists,
reads, archives, uploads, pauses, resumes and deletes. Ports were lost in this way when sandboxes shared the
machine's network; no version is known in which a swapped name led anywhere.
"""

import asyncio
from typing import Any, Final

from tests.hostile_archives import plant, tree
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.pair import Attack, Pair, attacking_pair, not_at_default
from tests.resilience.rows.ports import MARK, TAKE

ROUNDS: Final = 20
USES: Final = 200
_CANARY: Final = "canary-behind-a-link"
_NO_SWEEP: Final = 1 << 16
FLAP: Final = r"""
import socket
page = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nown"
served = 0
while goes_on():
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("0.0.0.0", int(os.environ["WORKER_1"])))
        listener.listen()
        listener.settimeout(0.1)
        stream, _ = listener.accept()
        with stream:
            stream.settimeout(2)
            stream.recv(60000)
            stream.sendall(page)
            served += 1
    except OSError:
        pass
    finally:
        listener.close()
    time.sleep(0.01)
finish(served)
"""
"""Listens for one request at a time, and for none in between."""

SWAP: Final = r"""
import threading
count = 0
def swap(top, name):
    global count
    path, spare = os.path.join(top, name), os.path.join(top, name + ".spare")
    while goes_on():
        for target in know["targets"]:
            try:
                os.symlink(target, spare)
                os.rename(spare, path)
                os.unlink(path)
                os.mkdir(path)
                with open(os.path.join(path, "secret"), "w") as file:
                    file.write("own")
                os.unlink(os.path.join(path, "secret"))
                os.rmdir(path)
                with open(spare, "w") as file:
                    file.write("own")
                os.rename(spare, path)
                count += 1
            except OSError:
                for one in (path, spare):
                    try:
                        os.unlink(one)
                    except OSError:
                        pass
threads = [threading.Thread(target=swap, args=place, daemon=True) for place in
           [(os.getcwd(), "swapped"), (os.getcwd(), "secret"), ("/tmp", "swapped"), (os.path.expanduser("~"), "swapped"), (os.path.dirname(os.getcwd()), "swapped")]]
for thread in threads:
    thread.start()
while goes_on():
    time.sleep(0.05)
finish(count)
"""


async def _use_port(pair: Pair, uses: int) -> tuple[int, list[str]]:
    """Have the victim ask at a port that is left for a moment after each request."""
    victim = pair.victim
    flapping = await Attack.begin(victim, FLAP, seconds=900)
    know = {"mark": MARK, "ports": [], "step": _NO_SWEEP}
    attack = await Attack.begin(pair.attacker, TAKE, seconds=900, **know)
    cookie, taken, own = "app-login=cookie-of-the-victim", 0, 0
    for _ in range(uses):
        answer = await victim.client.get(
            f"/sandboxes/{victim.inside.id}/worker_1/", headers={"Cookie": cookie}
        )
        taken += MARK.encode() in answer.body
        own += answer.body == b"own"
    found = await attack.finish()
    await flapping.finish()
    came = sum(cookie in text for _, text in found["heard"])
    problems = [f"the attacker's page is at the victim's port, {taken} times"] if taken else []
    problems += [f"the victim's cookie came to the attacker, {came} times"] if came else []
    return own, problems


async def _ask(pair: Pair, conversation: str) -> tuple[int, bytes]:
    """Have the server look at what is being swapped, in each way it does."""
    client = pair.attacker.client
    old, new = f"/api/conversations/{conversation}", f"/api/v1/app-conversations/{conversation}"
    told, asked = [], 0
    for path in (
        f"{new}/files",
        f"{new}/files?path=swapped",
        f"{new}/file?file_path=swapped",
        f"{new}/file?file_path=swapped/secret",
        f"{new}/file?file_path=secret",
        f"{new}/git/changes",
        f"{old}/select-file?file=swapped",
        f"{old}/zip-directory",
        f"{new}/download",
    ):
        answer = await client.get(path)
        told.append(answer.body)
        asked += 1
    saved = await client.post(f"{new}/archives")
    asked += 1
    if saved.status < 300:
        path = f"/api/v1/archives/{saved.json()['id']}"
        for _ in range(300):
            found: dict[str, Any] = (await client.get(path)).json()
            if found["state"] != "saving":
                break
            await asyncio.sleep(0.05)
        await client.delete(path)
    return asked, b"".join(told)


async def _delete(pair: Pair, targets: list[str]) -> list[str]:
    """Delete the attacker's sandbox while something in it swaps; return what went wrong."""
    attacker = pair.attacker
    await Attack.begin(attacker, SWAP, seconds=60, targets=targets)
    gone = await attacker.client.delete(f"/api/v1/sandboxes/{attacker.inside.id}")
    if gone.status >= 300:
        return [f"a sandbox that swaps links cannot be deleted: {gone.status}"]
    for _ in range(200):
        if not attacker.directory.exists():
            return []
        await asyncio.sleep(0.1)
    return ["a sandbox that swaps links leaves files"]


async def run(ground: Ground) -> Outcome:
    rounds = ground.count(ROUNDS, least=2)
    outside = ground.place("outside")
    plant(outside)
    (outside / "secret").write_text(_CANARY)
    before = tree(outside)
    problems: list[str] = []
    asked = swaps = 0
    async with attacking_pair(ground.place("server")) as pair:
        problems += not_at_default(pair)
        uses = ground.count(USES, least=20)
        own, taken = await _use_port(pair, uses)
        problems += taken
        secret = pair.victim.directory / "workspace" / "secret"
        await asyncio.to_thread(secret.write_text, _CANARY)
        data = pair.server.installation.data
        targets = [str(one) for one in (outside, outside / "secret", secret, secret.parent)]
        targets += [str(data.path), str(data.master_key), "/etc/shadow"]
        attacker = pair.attacker
        conversation = await attacker.client.start_conversation(None, sandbox_id=attacker.inside.id)
        attack = await Attack.begin(attacker, SWAP, seconds=1500, targets=targets)
        for number in range(rounds):
            count, told = await _ask(pair, conversation)
            asked += count
            if _CANARY.encode() in told or data.master_key.read_bytes().strip() in told:
                problems.append("an answer tells what a link leads to")
            if number % 2:
                for step, status in (("pause", "PAUSED"), ("resume", "RUNNING")):
                    await attacker.client.post(f"/api/v1/sandboxes/{attacker.inside.id}/{step}")
                    await attacker.client.wait_for_sandbox(attacker.inside.id, status)
                    asked += 1
        swaps = await attack.finish()
        problems += await _delete(pair, targets)
        if not secret.exists() or secret.read_text() != _CANARY:
            problems.append("what is another's was changed")
        if tree(outside) != before:
            problems.append("what is outside was changed")
        if not data.master_key.exists() or not data.database.exists():
            problems.append("what is the server's was removed")
    return Outcome(
        did=(
            f"{uses} uses of a port that is left for a moment after each request and taken by whoever"
            f" can; {swaps:,} rounds of swaps of links, files and directories in 5 places of a sandbox,"
            f" beside {asked} looks at it, and while it was deleted"
        ),
        figures=(
            Figure(what="requests that came to whom they were for", value=own, at_least=uses // 10),
            Figure(what="swaps", value=swaps, at_least=100),
            Figure(what="looks", value=asked, at_least=10 * rounds),
            zero("that read, wrote or removed anything else, or took a port", problems),
        ),
        problems=tuple(problems),
    )


ROW: Final = Row(name="races", half=Half.IN, promise="what is checked is what is used", run=run)
