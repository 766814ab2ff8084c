"""`agentsvc import openhands`: takes over what an OpenHands server has kept on disk.

`files` reads below a directory that nobody vouches for, `v0` and `v1` find what the two
generations of that server have written there, `v0_events` says the events of the first one in
words of the second, `credentials` opens what that server has encrypted and `preferences` reads its
settings. `service` stores all of it: each conversation in one transaction, nothing twice, and with a
line for each thing that says what became of it.
"""

from agentsvc.plugin import offers

agentsvc_register_commands = offers(f"{__name__}.commands:command")
