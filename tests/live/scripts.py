"""What the scripted model does in the live tests, and how a message asks for it."""

import re
from typing import Any

from agentsvc.testing.llm import Reply, Script, Turn, call, finish, say

_COMMAND = re.compile(r"^\$ (.*)$", re.MULTILINE)
_MAX_COMMANDS = 100

_TERMINALS: dict[str, dict[str, Any]] = {
    "terminal": {},
    "run_shell_command": {"is_background": False},
    "bash": {"description": "Do as told"},
}
"""What agents call the tool that runs a command, and what else each wants to be told."""

DONE = "Every command ran."
BUSY = "while sleep 5; do date; done"
"""A command that goes on until it is interrupted: what prints nothing for 30 s is not waited for."""
WORDS = " ".join(f"word-{number}" for number in range(60))


MODEL_NAME = "%MODEL%"
"""What commands of `run` name the model by that has thought of them."""


def run(*commands: str) -> str:
    """Return a message that has the agent run these commands in its terminal, one per turn."""
    return "\n".join(["[script:run]", *(f"$ {command}" for command in commands)])


def _next_command(turn: Turn) -> Reply:
    commands = _COMMAND.findall(turn.user_text)
    if turn.step >= len(commands):
        return finish(DONE) if "finish" in turn.tools else say(DONE)
    tool = next((name for name in _TERMINALS if name in turn.tools), "terminal")
    command = commands[turn.step].replace(MODEL_NAME, turn.request.get("model", ""))
    return call(tool, command=command, **_TERMINALS[tool])


def _first_words(turn: Turn) -> Reply:
    told = [one["content"] for one in turn.messages if one["role"] == "user"]
    return Reply(text=f"It began with: {told[0]}")


SCRIPTS: dict[str, Script] = {
    "run": (_next_command,) * _MAX_COMMANDS,
    "say": (say("Hello."),),
    "words": (
        call("terminal", text="First I look around, as always.", command="true"),
        say(WORDS, piece_seconds=0.05),
    ),
    # Words that come for as long as it takes to look at a part of them.
    "slowly": (say(WORDS, piece_seconds=0.5),),
    "lists": (say("Before:\n\n1. one\n2. two\n\nBetween.\n\n7. seven\n8. eight"),),
    "recall": (_first_words,),
    "slow": (say("That took a while.", delay_seconds=1),),
    "risky": (
        call("terminal", command="echo safe", security_risk="LOW"),
        call("terminal", command="echo danger", security_risk="HIGH"),
    ),
    "outcome": (
        call("terminal", command="echo from an automation"),
        call("finish", message=DONE, status="success", outcome_summary=DONE),
    ),
    "tool": (call("add", a=20, b=22), finish("It is done.")),
}
