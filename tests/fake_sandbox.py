"""State of the fake agent server for one sandbox."""

from agentsvc.agentserver import CommandResult
from tests.fake_conversation import FakeConversation, Json


class FakeSandbox:
    """What the FakeAgent knows of one sandbox, and its switches.

    `commands` has every command it was told to run, `requests` every request as method and path,
    `bodies` the body of each POST and PATCH that was JSON, `files` the uploaded files. Git knows
    what a test puts in: `git_changes` by directory, `git_diffs` by file, and `git_refs`.
    """

    def __init__(self, sandbox_id: str, key: str, webhook_url: str, working_dir: str) -> None:
        self.sandbox_id = sandbox_id
        self.key = key
        self.webhook_url = webhook_url
        self.working_dir = working_dir
        self.home = "/home/agent"
        self.slow_seconds = 0.0
        self.is_down = False
        self.has_webhooks = True
        self.init_key = ""
        """What it wants to hear before it is told for whom it is, if it was started for nobody."""
        self.is_dormant = False
        """Whether it waits for that, and takes nothing else."""
        self.conversations: dict[str, FakeConversation] = {}
        self.files: dict[str, bytes] = {}
        self.git_changes: dict[str, list[Json]] = {}
        self.git_diffs: dict[str, Json] = {}
        self.git_refs = {"HEAD"}
        self.skills: list[Json] = []
        self.hook_config: Json | None = None
        self.profiles: dict[str, Json] = {}
        self.commands: list[str] = []
        self.requests: list[str] = []
        self.bodies: list[tuple[str, Json]] = []
        self.outputs: dict[str, tuple[float, CommandResult]] = {}
        self.failures: list[tuple[int, str]] = []
        self.queue: list[tuple[str, bytes]] = []
        self.lost_answers: list[str] = []
        self.refused_messages: list[str] = []

    def fail_next(self, status: int, path_end: str, *, times: int = 1) -> None:
        """Answer the next requests to paths that end so, but for `/alive`, with this HTTP status.

        The server asks in the background too: name a path that it asks only when told to.
        """
        self.failures += [(status, path_end)] * times

    def fails(self, path: str) -> int | None:
        """Return the status this request is to be answered with, which then has happened."""
        found = next((one for one in self.failures if path.endswith(one[1])), None)
        if found is None:
            return None
        self.failures.remove(found)
        return found[0]

    def lose_next_answer(self, path_end: str) -> None:
        """Do what the next POST to such a path asks for, and hang up without an answer."""
        self.lost_answers.append(path_end)

    def loses(self, path: str) -> bool:
        """Whether the answer to this request is to be lost, which then has happened."""
        lost = next((end for end in self.lost_answers if path.endswith(end)), None)
        if lost is not None:
            self.lost_answers.remove(lost)
        return lost is not None

    def refuse_next_message(self, reason: str) -> None:
        """Answer the next message with 422."""
        self.refused_messages.append(reason)
