"""``python -m isthmus``: the command ``isthmus`` of this environment."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from typing import NoReturn


def command() -> str:
    """The path of ``isthmus``: that of this environment, or else the first in PATH."""
    own = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    found = shutil.which("isthmus", path=os.pathsep.join(own)) or shutil.which("isthmus")
    if found is None:
        raise SystemExit("isthmus: the command is not in this environment, nor in PATH; the wheel of `make wheel` has it")
    return found


def run(name: str) -> NoReturn:
    """Becomes the command, called by this name."""
    os.execv(command(), [name, *sys.argv[1:]])


def mover() -> NoReturn:
    """``isthmus-cp``: the mover of MPI programs."""
    run("isthmus-cp")


if __name__ == "__main__":
    run("isthmus")
