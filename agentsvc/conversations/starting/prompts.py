"""Prompts that the server itself writes for agents. Pure."""

from typing import Final

from agentsvc.base import BadRequest
from agentsvc.domain import Message, StartOrder, SuggestedTask, TaskType, message_of

PLANNER_SUFFIX: Final = (
    "Your role in this conversation is that of a planner. Read and search as much as you need,"
    " change nothing but the file PLAN.md in the project directory, and write into it a plan that"
    " somebody else can carry out: the goal, the steps in order, the files each step touches, and"
    " how to check the result."
)

_TASKS: Final = {
    TaskType.MERGE_CONFLICTS: (
        "Pull request #{number} of {repo} ({title}) has merge conflicts. Check out its branch,"
        " merge the base branch into it, resolve each conflict so that both sides keep their"
        " intent, run the tests, then commit and push."
    ),
    TaskType.FAILING_CHECKS: (
        "Checks of pull request #{number} of {repo} ({title}) fail. Find out through the"
        " provider's API which and why, reproduce them here where that is possible, repair the"
        " cause, then commit and push to the branch of the pull request."
    ),
    TaskType.UNRESOLVED_COMMENTS: (
        "Pull request #{number} of {repo} ({title}) has review comments that are not resolved."
        " Read them through the provider's API, make the changes they ask for or answer why not,"
        " then commit and push to the branch of the pull request."
    ),
    TaskType.OPEN_ISSUE: (
        "Issue #{number} of {repo} ({title}) is open. Read it and its comments through the"
        " provider's API, make the change on a new branch with tests, push it, and open a draft"
        " pull request that refers to the issue."
    ),
}


def first_message(order: StartOrder) -> Message | None:
    """Return the first message to the agent, or None if it waits for input.

    Raises BadRequest for a suggested task together with a message, or of a type without a prompt.
    """
    task = order.suggested_task
    if task is None:
        return order.initial_message
    if order.initial_message is not None:
        raise BadRequest("suggested_task and initial_message cannot be given together")
    return message_of(_task_text(task))


def _task_text(task: SuggestedTask) -> str:
    template = _TASKS.get(task.task_type)
    if template is None:
        raise BadRequest(f"A suggested task of type {task.task_type} cannot be started")
    where = template.format(number=task.issue_number, repo=task.repo, title=task.title)
    return f"{where} The provider is {task.provider}; its token is in the environment."
