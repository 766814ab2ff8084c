"""Runs the command line: `python -m agentsvc` and the `agentsvc` script."""

from agentsvc.cli import cli


def main() -> None:
    """Run the command line with the arguments of this process, and exit."""
    cli(prog_name="agentsvc")


if __name__ == "__main__":
    main()
