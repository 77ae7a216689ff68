"""check.py FILE …: the work of ./run, which see."""

import collections
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
CATALOGUES = HERE.parents[1] / "schema" / "engines"
sys.path.insert(0, str(CATALOGUES / "gen"))

import environment  # noqa: E402  (of schema/engines/gen)
import generate  # noqa: E402


def main():
    passed, failures = 0, []
    cases = read(sys.argv[1:])
    releases = sorted(c.stem.split("-", 1) for engine in ("sglang", "vllm") for c in CATALOGUES.glob(f"{engine}-*.jsonl"))
    for engine, version in releases:
        problem = drift(engine, version)
        passed, failures = passed + (not problem), failures + problem
        mine = cases.pop((engine, version), [])
        answers = parse(engine, version, mine)
        wrong = [f"{c['place']}: {engine} {version}: {json.dumps(c['argv'], ensure_ascii=False)}: {a}" for c, a in zip(mine, answers, strict=True) if a]
        passed, failures = passed + len(mine) - len(wrong), failures + wrong
        print(f"{engine} {version}: the catalogue {'differs' if problem else 'is its own'}, {len(mine)} command lines, {len(wrong)} wrong")
    for (engine, version), unknown in cases.items():
        failures += [f"{c['place']}: there is no catalogue of {engine} {version}" for c in unknown]
    print("\n".join(failures), end="\n" if failures else "")
    print(f"{passed} passed, {len(failures)} failed")
    raise SystemExit(bool(failures) or not passed)


def read(paths):
    """The cases of all files, by engine and version, each with its place."""
    cases = collections.defaultdict(list)
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    case = json.loads(line)
                    cases[case["engine"], case["version"]].append({**case, "place": f"{pathlib.Path(path).name}:{number}"})
    return cases


def drift(engine, version):
    """What keeps the committed catalogue from being the package's own, as a list of at most one problem."""
    command = [sys.executable, CATALOGUES / "gen" / "generate.py", engine, version, "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    return [result.stdout + result.stderr] if result.returncode else []


def parse(engine, version, cases):
    """The parser's answer to each case: what is wrong, or nothing."""
    python = environment.prepare(engine, version, generate.default_cache().resolve())
    text = "".join(json.dumps(c) + "\n" for c in cases)
    answers = environment.call(python, HERE / "parse.py", engine, input=text)
    return [json.loads(a) for a in answers.splitlines()]


if __name__ == "__main__":
    main()
