"""goldens.py: prints every engine command of the golden plans as a case a line, with what the parser must make of it."""

import json
import pathlib

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden"


def main():
    seen = set()
    for path in sorted(GOLDEN.rglob("plan.json")):
        for route_key, judge in json.loads(path.read_text())["instances"].items():
            for argv in judge["argv"]:
                if judge["engine"] not in ("vllm", "sglang"):
                    continue
                size = {"vllm": "tensor_parallel_size", "sglang": "tp_size"}[judge["engine"]]
                name = {"vllm": [route_key], "sglang": route_key}[judge["engine"]]
                line = json.dumps(
                    {
                        "engine": judge["engine"],
                        "version": judge["engine_version"],
                        "argv": argv,
                        "want": {size: judge["tensor_parallel_size"], "served_model_name": name},
                    }
                )
                if line not in seen:
                    seen.add(line)
                    print(line)
    if not seen:
        raise SystemExit("e2e/parsers: golden/ holds no engine command")


main()
