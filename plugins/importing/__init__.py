"""The command `agentsvc import openhands`: imports the data directory of an OpenHands server.

`files` reads from the directory, whose content is untrusted; `v0` and `v1` find the conversations of
the two generations of that server, `v0_events` converts the events of the first one to those of the
second, `credentials` decrypts secrets, and `preferences` reads settings. `service` stores the data:
each conversation in one transaction, no item twice, and reports the result of each item.
"""

from agentsvc.plugin import offers

agentsvc_register_commands = offers(f"{__name__}.commands:command")
