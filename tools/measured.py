#!/usr/bin/env python3
"""Writes the tables of docs/measured.md from the files in docs/measured/.

A table stands between two comments. The first one names its file and its layout:

    <!-- table transfer: RTT, Program | Loss -->
    <!-- end -->

The names before the bar are columns of the file that begin each row. The name after the bar is the column whose values
are the titles of the other columns. The columns of every file after those:

    unit    printed after each value
    mark    printed after the cell: * if the emulator was late, † if an earlier build was measured
    kept    what `values` holds, see KEPT
    runs    number of runs
    values  numbers as measured or as printed, separated by spaces

`samples` are single runs, and the script computes what it prints. For older measurements only the printed figures exist:
their rows say `median`, `range`, `median and range`, or `printed` where the number of runs is not known or has no
meaning. A new measurement replaces them by samples. `limit` is the time after which runs were ended, `text` a result
that is no number, and `none` an empty cell that keeps the order of the columns.

    tools/measured.py                       writes the tables
    tools/measured.py --check               fails if the page is not what the files say
    tools/measured.py --take SAMPLES NAME   replaces docs/measured/NAME.csv by the samples of `isthmus bench wan`

`--take` keeps the columns of the file and its first line, which has the command. Correct that line if another command
made the samples. In a new file write these two lines first.
"""

import argparse
import collections
import csv
import json
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "measured.md"
DATA = ROOT / "docs" / "measured"
OWN = ["unit", "mark", "kept", "runs", "values"]
TABLE = re.compile(r"<!-- table (?P<name>[a-z-]+): (?P<rows>[^|>]*) \| (?P<titles>[^>]*) -->\n.*?(?=<!-- end -->)", re.S)
# How many single runs a cell shows. Of more it shows the median and the range.
SHOWN = 3


def of_samples(values):
    """Up to three single runs, or the median and the range with the digits of the samples."""
    if len(values) <= SHOWN:
        return ", ".join(values)
    digits = max(len(value.partition(".")[2]) for value in values)
    numbers = [float(value) for value in values]
    return of_median_and_range([f"{number:.{digits}f}" for number in (statistics.median(numbers), min(numbers), max(numbers))])


def of_one(values):
    (value,) = values
    return value


def of_range(values):
    least, most = values
    return f"{least} to {most}"


def of_median_and_range(values):
    median, least, most = values
    return f"{median} ({least} to {most})"


# What a row may hold, and how a cell shows it.
KEPT = {
    "samples": of_samples,
    "median": of_one,
    "printed": of_one,
    "none": lambda values: "",
    "range": of_range,
    "median and range": of_median_and_range,
    "limit": lambda values: f"not ended after {of_one(values)}" if values else "not ended",
    "text": " ".join,
}


def read(path):
    """The rows of a file. Lines that begin with # say where they come from."""
    with path.open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def cell(row):
    text = KEPT[row["kept"]](row["values"].split())
    if row["kept"] == "samples" and row["runs"] and int(row["runs"]) != len(row["values"].split()):
        raise ValueError(f"{row['runs']} runs, but other samples: {row['values']}")
    return " ".join(filter(None, (text, row["unit"]))) + row["mark"]


def table(name, begins, titles):
    """A table as Markdown."""
    rows = read(DATA / f"{name}.csv")
    columns = list(dict.fromkeys(row[titles] for row in rows))
    cells = collections.defaultdict(dict)
    for row in rows:
        at = cells[tuple(row[key] for key in begins)]
        if row[titles] in at:
            raise ValueError(f"{name}: two rows for {row}")
        at[row[titles]] = cell(row)
    lines = [[*begins, *columns], ["---"] * (len(begins) + len(columns))]
    before = None
    for keys, at in cells.items():
        # The first key is not repeated.
        first = "" if len(keys) > 1 and before == keys[0] else keys[0]
        before = keys[0]
        lines.append([first, *keys[1:], *(at.get(column, "") for column in columns)])
    return "".join(line(words) for words in lines)


def line(words):
    if words[0] == "---":
        return "|" + "---|" * len(words) + "\n"
    return "|" + "".join(f" {word} |" if word else " |" for word in words) + "\n"


def page(text):
    """The page with each table as its file says."""

    def written(found):
        begins = [key.strip() for key in found["rows"].split(",")]
        head = found[0].splitlines()[0]
        return f"{head}\n{table(found['name'], begins, found['titles'])}"

    return TABLE.sub(written, text).rstrip("\n") + "\n"


def unused(text):
    """Files of which the page has no table."""
    named = {found["name"] for found in TABLE.finditer(text)}
    return sorted(path.name for path in DATA.glob("*.csv") if path.stem not in named)


def spaced(text):
    """24ms as 24 ms."""
    return re.sub(r"(?<=\d)(?=[a-z%])", " ", text)


def link_name(sample):
    """The name of a link in the reports of `isthmus bench wan`."""
    link = sample["link"]
    return f"{link['name']}; {link['rtt']}, MTU {link['mtu']}" if link.get("name") else f"{link['rtt']}, {link['loss']}"


def program(sample):
    """The page's name of a contender."""
    kind, _, which = sample["contender"].partition("-")
    if kind == "iperf3":
        control, _, streams = which.rpartition("-")
        return f"iperf3 `{control}` {streams}"
    own = {"isthmus": "Isthmus", "stock": "stock `tcp`"}.get(kind, kind)
    return f"{own}, `{which}`" if which else own


# The columns that `take` can fill.
COLUMNS = {
    "Link": link_name,
    "RTT": lambda sample: spaced(sample["link"]["rtt"]),
    "Loss": lambda sample: spaced(sample["link"]["loss"]),
    "Program": program,
}


def fraction(sample):
    """The fraction of the floor as in the reports of `isthmus bench wan`. A run that did not end counts as the most that
    it can have reached, one that failed as 0, and of two flows that share a link iperf3's share counts."""
    took = sample["seconds"] or sample.get("not_ended_s")
    shares = sample.get("shares")
    return f"{shares['theirs'] if shares else sample['floor_s'] / took if took else 0:.3f}"


def take(samples, name):
    """Writes the fractions of the floor that `isthmus bench wan` measured, one row for each cell. Returns what is wrong
    with the samples or the file."""
    path = DATA / f"{name}.csv"
    if not path.exists():
        return f"there is no {path.name}: write two lines, # with the command and the names of the columns"
    lines = path.read_text().splitlines()
    header = next(csv.reader(line for line in lines if not line.startswith("#")), [])
    keys = header[: -len(OWN)]
    if header[-len(OWN) :] != OWN or not set(keys) <= set(COLUMNS):
        return f"{path.name} has the columns {', '.join(keys)}; --take fills only {', '.join(COLUMNS)}"
    taken = [json.loads(line) for line in Path(samples).read_text().splitlines() if line.strip()]
    if not taken:
        return f"{samples} has no samples"
    cells = collections.defaultdict(list)
    for sample in taken:
        cells[tuple(COLUMNS[key](sample) for key in keys)].append(sample)
    for at, own in cells.items():
        differ = [key for key in ("work", "contender", "bytes", "ahead", "link") if any(one.get(key) != own[0].get(key) for one in own)]
        if differ:
            return f"{samples} has runs that differ in {', '.join(differ)} for the one cell {', '.join(at)}"
    with path.open("w") as file:
        file.write(next((f"{line}\n" for line in lines if line.startswith("#")), ""))
        versions, kernels = (", ".join(sorted({sample[key] for sample in taken})) for key in ("version", "kernel"))
        file.write(f"# Isthmus {versions}, kernel {kernels}\n")
        out = csv.writer(file, lineterminator="\n")
        out.writerow(header)
        for at, own in cells.items():
            mark = "*" if any(sample["emulator"].get("spoiled") for sample in own) else ""
            out.writerow([*at, "", mark, "samples", len(own), " ".join(map(fraction, own))])
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page differs")
    parser.add_argument("--take", nargs=2, metavar=("SAMPLES", "NAME"), help="replace NAME.csv by the samples of isthmus bench wan first")
    options = parser.parse_args()
    if options.take and (wrong := take(*options.take)):
        return wrong
    text = PAGE.read_text()
    new = page(text)
    if unused(text):
        return f"docs/measured.md has no table for {', '.join(unused(text))}"
    if options.check:
        return "docs/measured.md is not what docs/measured/ says: run tools/measured.py" if new != text else 0
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
