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
    files = [file for engine in ("sglang", "vllm") for file in CATALOGUES.glob(f"{engine}-*.jsonl")]
    releases = sorted(tuple(file.stem.split("-", 1)) for file in files)
    passed, failures, cases = 0, [], read(sys.argv[1:], releases)
    for engine, version in releases:
        problems = drift(engine, version)
        mine = cases.pop((engine, version), [])
        for case, answer in zip(mine, parse(engine, version, mine), strict=True):
            if answer:
                words = json.dumps(case["argv"], ensure_ascii=False)
                problems.append(f"{case['place']}: {engine} {version}: {words}: {answer}")
        print(f"{engine} {version}: catalogue and {len(mine)} command lines, {len(problems)} wrong")
        passed += 1 + len(mine) - len(problems)
        failures += problems
    for (engine, version), unknown in cases.items():
        failures += [f"{case['place']}: there is no catalogue of {engine} {version}" for case in unknown]
    print("\n".join(failures), end="\n" if failures else "")
    print(f"{passed} passed, {len(failures)} failed")
    raise SystemExit(bool(failures) or not passed)


def read(paths, releases):
    """The cases of all files, by engine and version, each with its place. One without a version is of each release."""
    cases = collections.defaultdict(list)
    for path in map(pathlib.Path, paths):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                case = json.loads(line)
                versions = [case["version"]] if "version" in case else [v for e, v in releases if e == case["engine"]]
                for version in versions:
                    cases[case["engine"], version].append({**case, "place": f"{path.name}:{number}"})
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
