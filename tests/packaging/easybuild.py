#!/usr/bin/env python3
"""The recipe for EasyBuild: its style is good, `eb` installs it, and Lmod loads what that has made.

Its source is the tarball in build/tarball. Everything is in a folder of its own, so root may do it as well, which
EasyBuild refuses unless it is told. Exit status 0 when all holds.
"""

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EB = ROOT / "build/recipes/bin/eb"
LMOD = "/usr/share/lmod/lmod/libexec/lmod"
ENTER = f'eval "$({LMOD} bash load isthmus)"; command -v isthmus; echo "provider in $FI_PROVIDER_PATH"; isthmus --version'


def main():
    if not EB.exists():
        raise SystemExit("FAILED: easybuild: build/recipes is missing: run tools/bootstrap.sh recipes")
    found = list((ROOT / "build/tarball").glob(f"isthmus-*-{os.uname().machine}-*.tar.gz"))
    if len(found) != 1:
        raise SystemExit("FAILED: easybuild: build/tarball has no tarball: run make tarball")
    _, version, _, glibc = found[0].name.removesuffix(".tar.gz").split("-")
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        recipe = home / f"isthmus-{version}.eb"
        text = (ROOT / "packaging/isthmus.eb").read_text().replace("@VERSION@", version)
        text = text.replace("@GLIBC@", glibc.removeprefix("glibc"))
        recipe.write_text(text.replace("@SHA256@", hashlib.sha256(found[0].read_bytes()).hexdigest()))
        (home / found[0].name).write_bytes(found[0].read_bytes())

        def run(*command, **more):
            env = {"PATH": f"{EB.parent}:/usr/share/lmod/lmod/libexec:/usr/bin:/bin", "HOME": name, "LC_ALL": "C.UTF-8",
                   "EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES": "1", **more}  # fmt: skip
            done = subprocess.run([str(word) for word in command], env=env, cwd=home, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=300, check=False)  # fmt: skip
            if done.returncode:
                raise SystemExit(f"FAILED: easybuild: {' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}")
            return done.stdout

        run(EB, "--check-style", recipe)
        run(EB, f"--sourcepath={home}", f"--prefix={home}/eb", recipe)
        said = run("bash", "-euc", ENTER, MODULEPATH=f"{home}/eb/modules/all")
        print(said)
        for part in (f"{home}/eb/software/isthmus/{version}/bin/isthmus", f"provider in {home}/eb/software/isthmus/{version}/lib/isthmus"):
            if part not in said:
                raise SystemExit(f"FAILED: easybuild: what it has installed is not loaded; it said:\n{said}")
    print("easybuild: eb has installed the tarball, and Lmod has loaded it")


if __name__ == "__main__":
    main()
