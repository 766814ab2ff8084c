"""What a program does with the SDK's workspace on a pool of agent-sandbox, from its start to its end."""

import json
import os
import sys

task = json.load(sys.stdin)
os.environ["KUBECONFIG"] = task["kubeconfig"]

from openhands.workspace import AgentSandboxWorkspace  # noqa: E402

report = {}
options = {"warmpool": task["pool"], "connection": "direct", "host": task["host"]}
with AgentSandboxWorkspace(**options, working_dir=task["directory"]) as workspace:
    report["said"] = workspace.execute_command("echo one && echo kept >kept.txt").stdout
    workspace.pause()
    workspace.resume()
    report["kept"] = workspace.execute_command("cat kept.txt").stdout
sys.stdout.write(f"{json.dumps(report)}\n")
