"""What an editor does with `openhands acp --cloud`: JSON-RPC over its standard input and output."""

import json
import subprocess
import sys

task = json.load(sys.stdin)
command = [task["openhands"], "acp", "--cloud", "--cloud-url", task["url"], "--always-approve"]
if task.get("resume"):
    command += ["--resume", task["resume"]]
program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
updates = []


def ask(number, method, **params):
    line = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    program.stdin.write(f"{line}\n".encode())
    program.stdin.flush()
    for line in program.stdout:
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if said.get("method") == "session/update":
            updates.append(said["params"]["update"])
        elif said.get("id") == number:
            if "error" in said:
                raise SystemExit(f"{method}: {said['error']}")
            return said["result"]
    raise SystemExit(f"{method}: it ended")


try:
    ask(1, "initialize", protocolVersion=1, clientCapabilities={})
    session = ask(2, "session/new", cwd=task["cwd"], mcpServers=[])["sessionId"]
    replayed = len(updates)
    prompt = [{"type": "text", "text": task["text"]}]
    ended = ask(3, "session/prompt", sessionId=session, prompt=prompt)
finally:
    program.kill()
    program.wait()

texts = [one["content"].get("text", "") for one in updates if isinstance(one.get("content"), dict)]
results = [
    part["content"].get("text", "")
    for one in updates
    for part in (one.get("content") if isinstance(one.get("content"), list) else [])
    if isinstance(part.get("content"), dict)
]
report = {
    "session": session,
    "ended": ended["stopReason"],
    "replayed": replayed,
    "updates": [one["sessionUpdate"] for one in updates],
    "texts": texts,
    "results": results,
}
sys.stdout.write(f"{json.dumps(report)}\n")
