"""The command line's beginning and end: every command, and errors said without a traceback."""

import sys
from importlib import import_module

from rich.console import Console
from rich.markup import escape

from saccade.commands.app import app
from saccade.distributed.on_ray import spelled_out
from saccade.errors import SaccadeError

# As `saccade --help` lists them.
GROUPS = (
    "train",
    "estimate",
    "translate",
    "serve",
    "keys",
    "evaluate",
    "align",
    "inspect",
    "folders",
    "synthetic",
    "heads",
    "report",
    "learn",
)
for group in GROUPS:
    import_module(f"saccade.commands.{group}")


def main() -> None:
    """Run the command line; what a user can mend is said without a traceback."""
    try:
        app(args=spelled_out(sys.argv[1:]), standalone_mode=True)
    except SaccadeError as error:
        Console(stderr=True, highlight=False).print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
