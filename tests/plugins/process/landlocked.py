"""Run as an ordinary user: a process backend without bubblewrap, and what a sandbox in it reaches."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from process.backend import ProcessBackend
from process.settings import ProcessConfig

from agentsvc.base.values import new_id
from agentsvc.plugin.backend import BackendContext, Handle, Isolation, Order, Phase, Port

ASK = """
import json, re, socket
found = set(re.findall(r"\\S+/asvc-\\w+/control", open("/proc/net/unix").read()))
asked = {"argv": ["touch", "taken"], "env": {}, "time_limit": 5.0, "max_output": 100}
reached = set()
for path in found:
    for told in (asked, asked | {"token": ""}, asked | {"token": None}):
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(5)
            try:
                link.connect(path)
            except OSError:
                continue  # one of another user's, or of a sandbox that has ended
            link.sendall(json.dumps(told).encode() + b"\\n")
            link.recv(100)
        reached.add(path)
print(len(reached))
"""
SERVE = "import http.server, sys; http.server.test(port=int(sys.argv[1]), bind='127.0.0.1')"


async def save(_handle: Handle) -> None:
    """Keep nothing."""


async def look(top: Path) -> dict[str, Any]:
    secret = top / "agentsvc.db"
    secret.write_text("secret")
    context = BackendContext(instance_id=new_id(), state_dir=top / "state")
    backend = ProcessBackend(ProcessConfig(use_bubblewrap=False), context)
    await backend.open()
    order = Order(
        sandbox_id=new_id(),
        command=("{python}", "-Ic", SERVE, "{port.web}"),
        ports=(Port(name="web"),),
        isolation=Isolation.LANDLOCK,
    )
    other = await backend.create(Order(sandbox_id=new_id(), command=("sleep", "100")), save)
    handle = await backend.create(order, save)
    try:
        async with asyncio.timeout(40):
            report = await backend.inspect(handle)
            while report.phase is not Phase.RUNNING:
                report = await backend.inspect(handle)
        trials = {
            "own file": "echo x > new && cat new",
            "temporary file": 'echo x > "$TMPDIR/new" && cat "$TMPDIR/new"',
            "this package": f"{sys.executable} -Ic 'import agentsvc.guest'",
            "git": "git init -q . && git status --porcelain | head -c 2",
            "the server's database": f"cat {secret}",
            "the server's directory": f"ls {top}",
            "its own record": f"cat {context.state_dir}/{handle.sandbox_id}/record.json",
            "another sandbox": f"ls {context.state_dir}/{other.sandbox_id}/workspace",
            "the server's environment": f"cat /proc/{os.getpid()}/environ",
            "signal to the server": f"kill -0 {os.getpid()}",
            "the system": "echo x > /var/tmp/agentsvc-trial",
        }
        reached = []
        for name, line in trials.items():
            ended = await backend.execute(
                handle, ["sh", "-c", line], env={}, time_limit=20, max_output=1000
            )
            reached += [name] if ended.exit_code == 0 else []
        preloading = {"LD_PRELOAD": "/none.so", "MINE": "{port.web}"}
        ended = await backend.execute(
            handle, ["sh", "-c", "echo $MINE"], env=preloading, time_limit=20, max_output=1000
        )
        asking = await backend.execute(
            handle, [sys.executable, "-Ic", ASK], env={}, time_limit=40, max_output=1000
        )
        asked = (int(asking.stdout or 0), asking.stderr.decode())
        probe = await backend.probe()
        return {
            "isolation": report.isolation,
            "said": probe.facts["isolation"],
            "reached": reached,
            "preloading": ended.stderr.count(b"cannot be preloaded"),
            "own variable": ended.stdout.strip().isdigit(),
            "uid": os.getuid(),
            "asked": asked,
            "taken": await asyncio.to_thread(lambda: [str(path) for path in top.rglob("taken")]),
        }
    finally:
        for one in (handle, other):
            await backend.delete(one)
        await backend.close()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(look(Path(sys.argv[1])))))  # noqa: T201  # what is asked for
