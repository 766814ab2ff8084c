"""Public: what a plugin imports that adds to the server, beside backends and templates.

`server` has `Extension`, the class of such an addition, and `Server`, what it gets; `web` has what
routes are made of, and `storage` the database. Commands find theirs in `agentsvc.cli.extension`.
Only the composition root and the command line import this.
"""
