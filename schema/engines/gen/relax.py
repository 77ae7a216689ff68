#!/usr/bin/env python3
"""relax.py DUMP > ../relax-guide.jsonl: the catalogue of Relax's train.py.

Relax is not on a package registry, and its parser is put together at run time from its own arguments,
Megatron's, and SGLang's with an `--sglang-` prefix. DUMP is a recording of that parser on a machine that
has all three: one JSON object a line, in the order of registration, with `flags`, `type` (name of the
converter), `default`, `action` (class name), `from` (which of the parts), and, where set, `nargs`, `const`
and `choices`. The committed catalogue was made from the line of Relax that its GenRM guide documents.
"""

import json
import sys

import catalogue


def merged(rows):
    """One row an option. Relax re-registers some of Megatron's options; its `reset_arg` then keeps Megatron's
    action (converter, choices, spellings) and replaces the default alone."""
    table = {}
    for row in rows:
        option = {"required": False, **row, "source": row["from"].split(":")[0]}
        first = table.setdefault(row["flags"][0], option)
        if first is not option:
            table[row["flags"][0]] = {**option, "default": first["default"], "source": first["source"]}
    return list(table.values())


def main():
    with open(sys.argv[1], encoding="utf-8") as dump:
        rows = [json.loads(line) for line in dump]
    print("\n".join(catalogue.lines(merged(rows))))


if __name__ == "__main__":
    main()
