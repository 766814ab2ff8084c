"""Public: what a plugin imports that adds to the server, beside backends and specs.

Begin with `server`: `Extension` is the class of such an addition, and `Server` what it gets. `web` has what
routes are made of, `storage` the database. Commands find theirs in `agentsvc.cli.extension`. Of
the server only `app` imports this; each plugin imports the modules it needs.
"""
