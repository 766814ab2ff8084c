"""What a program does with the SDK's workspace on a pool of agent-sandbox, from its start to its end."""

import json
import os
import sys
import time
import urllib.request

task = json.load(sys.stdin)
os.environ["KUBECONFIG"] = task["kubeconfig"]

from openhands.workspace import AgentSandboxWorkspace  # noqa: E402


def answers() -> bool:
    """Say whether the agent server is there."""
    try:
        urllib.request.urlopen(f"{task['host']}/health", timeout=5).close()
    except OSError:
        return False
    return True


report = {}
options = {"warmpool": task["pool"], "connection": "direct", "host": task["host"]}
with AgentSandboxWorkspace(**options, working_dir=task["directory"]) as workspace:
    report["said"] = workspace.execute_command("echo one && echo kept >kept.txt").stdout
    workspace.pause()
    # A pause returns before it is one.
    while answers():
        time.sleep(0.5)
    time.sleep(2)
    workspace.resume()
    report["kept"] = workspace.execute_command("cat kept.txt").stdout
sys.stdout.write(f"{json.dumps(report)}\n")
