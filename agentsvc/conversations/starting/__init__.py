"""Starting a conversation: the steps of a start task and what each of them needs.

Begin with `pipeline`, which has the list of the steps, and `states`, what they hand on: `checks`,
`sandbox_wait`, `files`, `opener` (the agent). All are made of `parts`. `service` takes orders; `progress`
stores how far a start is and what became of it, `failure` explains to users why one failed. How many start
at once is decided by the admission of sandboxes.
"""
