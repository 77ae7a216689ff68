"""parse.py ENGINE: gives command lines to the engine's own parser. Runs inside the engine's environment.

Reads a case a line, a JSON object:

    engine, version   of the parser; check.py sends each case to the right one, or without a version to each release
    argv              the words after the program's name, or with it; a placeholder such as {port:http} stands for a
                      number
    want              {name: value}: what the parser must make of a flag (any spelling without dashes, - or _) or put
                      into a destination; of an object, the keys that are given
    refused           true if the parser must refuse the words

Answers each with a line: null if the parser does so, else what is wrong, as a JSON string.
"""

import contextlib
import dataclasses
import enum
import io
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "schema" / "engines" / "gen"))

import parsers  # noqa: E402

PROGRAMS = (["vllm", "serve"], ["python3", "-m", "sglang.launch_server"], ["python", "-m", "sglang.launch_server"])
PLACEHOLDER = re.compile(r"\{[a-z_]+:[A-Za-z0-9_.:-]*\}")
NUMBER = "18080"  # a port, a rank and a host name will all take it


def main():
    parser = parsers.parser_of(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(answer(parser, json.loads(line)), ensure_ascii=False), flush=True)


def answer(parser, case):
    argv = [PLACEHOLDER.sub(NUMBER, word) for word in case["argv"]]
    for program in PROGRAMS:
        if argv[: len(program)] == program:
            argv = argv[len(program) :]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            parsed = parser.parse(argv)
    except (SystemExit, Exception) as refusal:  # argparse exits; converters and vLLM's rewriting raise what they like
        problem = (said.getvalue().strip().splitlines() or [repr(refusal)])[-1]
        return None if case.get("refused") else f"refused: {problem}"
    if case.get("refused"):
        return "accepted"
    for name, want in case.get("want", {}).items():
        destination = destination_of(parser.options, name)
        if not hasattr(parsed, destination):
            return f"{name} is no flag and no destination"
        got = getattr(parsed, destination)
        if not agrees(got, want):
            return f"{name} is {got!r}, want {json.dumps(want)}"
    return None


def destination_of(options, name):
    flag = "--" + name.lstrip("-").replace("_", "-")
    action = options._option_string_actions.get(flag) or options._option_string_actions.get("--" + name)
    return action.dest if action else name


def agrees(got, want):
    """Whether a parsed value is the wanted JSON value."""
    if isinstance(got, enum.Enum):
        got = got.value
    if isinstance(want, bool) or isinstance(got, bool) or want is None:
        return got is want
    if isinstance(want, dict):
        if dataclasses.is_dataclass(got):
            got = vars(got)
        return isinstance(got, dict) and all(k in got and agrees(got[k], v) for k, v in want.items())
    if isinstance(want, list):
        return isinstance(got, (list, tuple)) and len(got) == len(want) and all(map(agrees, got, want))
    return type(got) in (int, float, str) and got == want


if __name__ == "__main__":
    main()
