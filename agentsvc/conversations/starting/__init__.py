"""Starting a conversation: the steps of a start task and what each of them needs.

Begin with `pipeline`. `progress` stores how far a start is, `concurrency` limits how many run at once,
`failure` explains to users why one failed.
"""
