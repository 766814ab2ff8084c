"""What a program does with the SDK's remote workspace and conversation, on a running sandbox."""

import json
import sys
import time
import uuid
from pathlib import Path

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.sdk.workspace import RemoteWorkspace
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool

task = json.load(sys.stdin)
report = {}


def texts(conversation):
    observations = [
        one.observation for one in conversation.state.events if hasattr(one, "observation")
    ]
    return [one.text.splitlines()[0] for one in observations if one.text]


def wait_for(status):
    deadline = time.monotonic() + task["patience"]
    while conversation.state.refresh_from_server()["execution_status"] != status:
        if time.monotonic() > deadline:
            raise TimeoutError(status)
        time.sleep(0.1)


with RemoteWorkspace(
    host=task["host"], api_key=task["session_key"], working_dir=task["working_dir"]
) as workspace:
    report["alive"] = workspace.alive
    llm = LLM(**task["llm"])
    agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)])
    streamed = []
    conversation = Conversation(
        agent=agent,
        workspace=workspace,
        conversation_id=uuid.UUID(task["conversation_id"]),
        callbacks=[lambda event: streamed.append(type(event).__name__)],
        visualizer=None,
    )
    report["before"] = texts(conversation)
    conversation.send_message(task["text"])
    conversation.run(timeout=task["patience"])
    report["after"] = texts(conversation)

    conversation.send_message(task["slow"])
    conversation.run(blocking=False)
    wait_for("running")
    conversation.pause()
    wait_for("paused")
    report["while_paused"] = texts(conversation)
    conversation.run(timeout=task["patience"])
    report["at_the_end"] = texts(conversation)

    report["changes"] = [[one.status.value, str(one.path)] for one in workspace.git_changes(".")]
    report["diff"] = workspace.git_diff("a.txt").model_dump()
    sent = bytes(range(256)) * 1000
    path = f"{task['working_dir']}/b.bin"
    report["uploaded"] = workspace.file_upload(sent, path).success
    workspace.file_download(path, "remote.bin")
    report["is_same"] = Path("remote.bin").read_bytes() == sent
    report["listed"] = workspace.execute_command("ls", cwd=task["working_dir"]).stdout.split()

    # One of the program's own, beside the one that the server started.
    own = Conversation(agent=agent, workspace=workspace, visualizer=None, delete_on_close=True)
    own.send_message(task["text"])
    own.run(timeout=task["patience"])
    report["own"] = texts(own)
    report["own_id"] = own.id.hex
    conversation.close()
    own.close()

report["kinds"] = sorted(set(streamed))
sys.stdout.write(f"{json.dumps(report)}\n")
