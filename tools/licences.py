#!/usr/bin/env python3
"""Writes the licences of the crates that the binaries contain, with their texts: for packages.

    tools/licences.py FILE [TARGET]

TARGET is the platform that they are for, such as aarch64-unknown-linux-gnu; without it, this machine's. Which
they are is what cargo says of Cargo.lock; the texts are in the crates' own folders. Equal texts stand there once.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The packages that binaries are made of.
BINARIES = {"isthmus", "isthmus-ofi", "isthmus-c"}
TEXTS = ("license", "licence", "copying", "notice", "copyright", "unlicense")


def own_platform():
    said = subprocess.run(["rustc", "-vV"], stdout=subprocess.PIPE, text=True, check=True).stdout
    (host,) = (line.split()[1] for line in said.splitlines() if line.startswith("host:"))
    return host


def crates(target):
    """The crates of others that the binaries for this platform contain, by name."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    known = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    packages = {package["id"]: package for package in known["packages"]}
    needs = {
        node["id"]: [dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        for node in known["resolve"]["nodes"]
    }
    todo = [name for name in known["workspace_members"] if packages[name]["name"] in BINARIES]
    found = set(todo)
    while todo:
        more = set(needs[todo.pop()]) - found
        found |= more
        todo += more
    others = (packages[name] for name in found if packages[name]["source"])
    return sorted(others, key=lambda package: (package["name"], package["version"]))


def texts_of(package):
    folder = Path(package["manifest_path"]).parent
    files = {path for path in folder.iterdir() if path.is_file() and path.name.lower().startswith(TEXTS)}
    named = package.get("license_file")
    return sorted(files | ({folder / named} if named else set()))


def main():
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    of_text, lines, without = {}, [], []
    for package in crates(sys.argv[2] if sys.argv[2:] else own_platform()):
        name = f"{package['name']} {package['version']}"
        lines.append(f"{name}: {package['license'] or 'see its text'}, {package['repository'] or ''}".rstrip(", "))
        found = texts_of(package)
        if not found:
            without.append(name)
        for path in found:
            text = path.read_text(errors="replace").strip()
            of_text.setdefault(text, []).append(name)
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        print("Isthmus's programs and libraries contain these crates, each under its own licence:\n", file=out)
        print("\n".join(lines), file=out)
        if without:
            print("\nThese come without a text; that of the licence named above holds:", ", ".join(without), file=out)
        for text, names in of_text.items():
            print(f"\n{'-' * 80}\n{', '.join(sorted(set(names)))}:\n\n{text}", file=out)


if __name__ == "__main__":
    main()
