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

    return TABLE.sub(written, text)


def unused(text):
    """Files of which the page has no table."""
    named = {found["name"] for found in TABLE.finditer(text)}
    return sorted(path.name for path in DATA.glob("*.csv") if path.stem not in named)


def take(samples, name):
    """Writes the fractions of the floor that `isthmus bench wan` measured, one row for each link and program."""
    found = collections.defaultdict(list)
    late = set()
    for sample in map(json.loads, Path(samples).read_text().splitlines()):
        link = sample["link"]
        rtt, loss = (re.sub(r"(?<=\d)(?=[a-z%])", " ", link[name]) for name in ("rtt", "loss"))
        key = (link.get("name") or rtt, sample["contender"], loss)
        # As in the reports of `isthmus bench wan`: a run that does not end counts as the most that it can have reached.
        took = sample["seconds"] or sample.get("not_ended_s")
        if took:
            found[key].append(f"{sample['floor_s'] / took:.3f}")
        if sample["emulator"].get("spoiled"):
            late.add(key)
    with (DATA / f"{name}.csv").open("w") as file:
        file.write(f"# Samples of isthmus bench wan, {sample['version']}, kernel {sample['kernel']}.\n")
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["RTT", "Program", "Loss", *OWN])
        for key, values in found.items():
            out.writerow([*key, "", "*" if key in late else "", "samples", len(values), " ".join(values)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page differs")
    parser.add_argument("--take", nargs=2, metavar=("SAMPLES", "NAME"), help="make NAME.csv from the samples of isthmus bench wan first")
    options = parser.parse_args()
    if options.take:
        take(*options.take)
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
