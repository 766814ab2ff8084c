"""Public: the modules for plugins that extend the server beyond backends and specs.

Begin with `server`: `Extension` is the base class of an extension, and `Server` holds its services. `web` is
for routes, `storage` for the database. Commands use `agentsvc.cli.extension`. In the server only `app`
imports this package; each plugin imports the modules it needs.
"""
