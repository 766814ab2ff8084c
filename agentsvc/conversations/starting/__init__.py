"""The start of a conversation: a pipeline of steps that takes an order to a ready agent.

Read `pipeline` first, which lists the steps, then `states`, the values that they pass on. The steps
are in `checks`, `sandbox_wait`, `files` and `opener`; `parts` holds the services that they share.
`service` accepts orders and runs the pipeline in the background, `progress` stores the stage and
the result of a start task, `failure` explains to users why a start failed. How many starts run at
once is decided by the admission in `sandboxes`.
"""
