#!/usr/bin/env python3
"""generate.py ENGINE VERSION [--check] [--cache FOLDER]: the flag catalogue of an engine release.

Installs the released package (environment.py), asks its own argument parser (parsers.py) and writes the options as
../ENGINE-VERSION.jsonl (catalogue.py describes the lines). With --check it writes nothing and fails if the file
differs. ENGINE is vllm or sglang; relax.py makes the catalogue of Relax. The machine needs Python 3.11 to 3.13,
pip, gcc and the package index; no GPU. A new release also has to be listed in ../engines.go.

FOLDER keeps the environments, 2 GB each, by release; default $GENRM_E2E_CACHE, else .cache/e2e of the repository.
"""

import argparse
import difflib
import os
import pathlib
import sys

import environment

HERE = environment.HERE


def default_cache():
    return pathlib.Path(os.environ.get("GENRM_E2E_CACHE") or HERE.parents[2] / ".cache" / "e2e") / "parsers"


def main():
    summary, _, rest = __doc__.partition("\n")
    arguments = argparse.ArgumentParser(description=summary, epilog=rest)
    arguments.add_argument("engine", choices=("vllm", "sglang"))
    arguments.add_argument("version")
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--cache", type=pathlib.Path, default=default_cache())
    arguments = arguments.parse_args()
    python = environment.prepare(arguments.engine, arguments.version, arguments.cache.resolve())
    lines = environment.call(python, HERE / "parsers.py", arguments.engine)
    file = HERE.parent / f"{arguments.engine}-{arguments.version}.jsonl"
    if not arguments.check:
        file.write_text(lines, encoding="utf-8")
        return
    committed = file.read_text(encoding="utf-8")
    if lines != committed:
        old, new = committed.splitlines(True), lines.splitlines(True)
        sys.stdout.writelines(difflib.unified_diff(old, new, file.name, "the package", n=0))
        raise SystemExit(f"{file.name} is not what the package's parser says: run schema/engines/gen/generate.py")


if __name__ == "__main__":
    main()
