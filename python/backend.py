"""What pip calls to build the wheel: maturin, once the C library's declarations are made from its header.

`python3 backend.py` makes the declarations alone, for the package run from its sources. It needs cffi and a C compiler.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import cffi

HERE = Path(__file__).resolve().parent
HEADER = HERE.parent / "include/isthmus.h"
#: Read by cffi's part without its parser, so that programs start fast and need no header.
MADE = HERE / "src/isthmus/_declarations.py"
#: The system's headers have more than cffi reads. It knows the types of the first two itself; POSIX says what the third
#: declares.
SYSTEM = {"stddef.h": "", "stdint.h": "", "sys/uio.h": "struct iovec { void *iov_base; size_t iov_len; };"}
#: Macros are gone after the preprocessor: constants by the same names, less their prefix, have their values.
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


def build_wheel(*arguments: Any, **named: Any) -> str:
    import maturin

    declare()
    return maturin.build_wheel(*arguments, **named)


def build_editable(*arguments: Any, **named: Any) -> str:
    import maturin

    declare()
    return maturin.build_editable(*arguments, **named)


if __name__ == "__main__":
    declare()
