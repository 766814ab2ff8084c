"""Starting a conversation: the steps of a start task and what each of them needs."""
