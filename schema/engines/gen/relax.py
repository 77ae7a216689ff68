#!/usr/bin/env python3
"""relax.py RECORDING SGLANG > ../relax-guide.jsonl: the catalogue of Relax's train.py.

Relax is on no package index, and its parser is put together at run time from its own options, Megatron's, and
SGLang's behind `--sglang-`. RECORDING is a dump of that parser, made where all three are installed: a JSON object
a line, in the order of registration, with `flags`, `type` (name of the converter), `default`, `action` (class
name), `from` (which part) and, where set, `nargs` and `choices`. SGLANG is the catalogue of the SGLang release
that this Relax pins; it says which of SGLang's strings are JSON and which options deprecated, which a recording
without help sentences cannot. The committed catalogue is of the line of Relax that its GenRM guide documents, with
SGLang 0.5.15.post1.
"""

import json
import pathlib
import sys

import catalogue


def merged(rows):
    """One option for each row; for options that Relax registers a second time, one for both rows: its `reset_arg`
    keeps Megatron's action (converter, choices, spellings) and replaces the default alone."""
    options = {}
    for row in rows:
        option = {**row, "source": row["from"].split(":")[0]}
        if ours := options.get(row["flags"][0]):
            option.update(default=ours["default"], source=ours["source"])
        options[row["flags"][0]] = option
    return list(options.values())


def main():
    recording, sglang = (pathlib.Path(path).read_text(encoding="utf-8").splitlines() for path in sys.argv[1:3])
    theirs = {"--sglang-" + f["flag"][2:]: f for f in map(json.loads, sglang) if "flag" in f}
    options = merged(map(json.loads, recording))
    for option in options:
        their = theirs.get(option["flags"][0], {})
        option["deprecated"] = their.get("deprecated")
        if their.get("json_loose"):
            option["type"] = {**catalogue.CONVERTERS[option["type"]], "json_loose": True}
    print("\n".join(catalogue.lines(options)))


if __name__ == "__main__":
    main()
