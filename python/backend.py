"""What pip calls to build the wheel: maturin, after the declarations of the C library are made from its header.

`python3 backend.py` makes the declarations alone, for programs that use the package from its sources. That takes cffi,
maturin and a C compiler.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Callable

import cffi
import maturin

HERE = Path(__file__).resolve().parent
HEADER = HERE.parent / "include/isthmus.h"
#: A module that cffi reads at run time without its parser, so programs start fast and need no header.
MADE = HERE / "src/isthmus/_declarations.py"
#: Stands for the system's headers, which declare more than cffi understands. cffi knows the types of the first two. The
#: third's is that of POSIX.
SYSTEM = {"stddef.h": "", "stdint.h": "", "sys/uio.h": "struct iovec { void *iov_base; size_t iov_len; };"}
#: The preprocessor removes macros, so constants without the prefix take their values.
SOURCE = "#include <isthmus.h>\nenum { ABI_VERSION = ISTHMUS_ABI_VERSION, URI_MAX = ISTHMUS_URI_MAX };\n"


def preprocessed() -> str:
    """The header's declarations, without comments and macros."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in SYSTEM.items():
            path = Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text + "\n")
        compiler = shlex.split(os.environ.get("CC") or "cc")
        options = ["-E", "-P", "-nostdinc", f"-I{folder}", f"-I{HEADER.parent}", "-x", "c", "-"]
        done = subprocess.run([*compiler, *options], input=SOURCE, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def declare() -> None:
    """Makes the declarations. Several processes may do so at once."""
    ffi = cffi.FFI()
    ffi.cdef(preprocessed())
    ffi.set_source("isthmus._declarations", None)
    with tempfile.TemporaryDirectory(dir=HERE) as folder:
        made = Path(folder, MADE.name)
        ffi.emit_python_code(str(made))
        made.replace(MADE)


def declared(hook: Callable[..., Any]) -> Callable[..., Any]:
    """One of maturin's hooks, with the declarations made before it runs."""

    def run(*arguments: Any, **named: Any) -> Any:
        # A source archive holds the declarations in the header's place.
        if HEADER.is_file():
            declare()
        return hook(*arguments, **named)

    return run


build_wheel = declared(maturin.build_wheel)
build_editable = declared(maturin.build_editable)
build_sdist = declared(maturin.build_sdist)
get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
get_requires_for_build_editable = maturin.get_requires_for_build_editable
get_requires_for_build_sdist = maturin.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = maturin.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = maturin.prepare_metadata_for_build_editable

if __name__ == "__main__":
    declare()
