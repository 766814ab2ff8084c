"""Runs the command line: `python -m agentsvc` and the `agentsvc` script."""

import importlib
import os
import sys

from agentsvc.environment import take_secrets


def main() -> None:
    """Run the command line with the arguments of this process, and exit."""
    _open_streams()
    # A server is there to be seen by what it runs. This comes before the imports, which it repeats.
    secrets = take_secrets(os.environ) if sys.argv[1:2] == ["serve"] else {}
    importlib.import_module("agentsvc.cli").cli(prog_name="agentsvc", obj=secrets)


def _open_streams() -> None:
    """Have what was closed for this process, such as by `>&-`, read nothing and write to nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


if __name__ == "__main__":
    main()
