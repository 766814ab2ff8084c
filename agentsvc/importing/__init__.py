"""Takes over the conversations, settings and secrets that an OpenHands server has kept on disk.

`files` reads below a directory that nobody vouches for, `older` and `newer` find what the two
generations of that server have written there, `older_events` says the events of the first one in
words of the second, `credentials` opens what that server has encrypted and reads its settings.
`service` stores all of it as ours: each conversation in one transaction, nothing twice, and with a
line for each thing that says what became of it.
"""

from agentsvc.importing.credentials import SecretOpener
from agentsvc.importing.files import Tree
from agentsvc.importing.model import Item, Outcome
from agentsvc.importing.service import Importer, Plan

__all__ = ["Importer", "Item", "Outcome", "Plan", "SecretOpener", "Tree"]
