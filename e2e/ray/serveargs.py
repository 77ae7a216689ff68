"""serveargs.py RAY FILE...: hands the applications in serve.json files to the classes that read them on a cluster,
ray.serve's and ray.serve.llm's of Ray 2.60.0 and vLLM 0.29.0's, which refuse a field or a value that they do not take.

RAY is the virtual environment of Ray. vLLM is in that of its flag catalogue (schema/engines/gen/environment.py, built
the first time), whose packages are found before Ray's. Prints the flags of vLLM's server that become no keyword
argument of these classes, and a line for each judge.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import unittest.mock

HERE = pathlib.Path(__file__).resolve()
ENGINES = HERE.parents[2] / "schema" / "engines"


def outside(ray, *files):
    sys.path.insert(0, str(ENGINES / "gen"))
    import environment

    cache = pathlib.Path(os.environ.get("GENRM_E2E_CACHE") or HERE.parents[2] / ".cache" / "e2e") / "parsers"
    python = environment.prepare("vllm", "0.29.0", cache.resolve())
    packages = next(pathlib.Path(ray).glob("lib/python3*/site-packages"))
    variables = {"PATH": os.defpath, "HOME": str(python.parents[1]), "CUDA_VISIBLE_DEVICES": "", "VLLM_NO_USAGE_STATS": "1"}
    sys.exit(subprocess.run([python, HERE, "--inside", packages, *files], env=variables).returncode)


def inside(packages, *files):
    sys.argv = ["vllm", "serve", "--help=all"]  # see schema/engines/gen/parsers.py
    sys.path.append(packages)
    # What the checks below import and do not call.
    for absent in ("pyarrow", "pyarrow.fs", "httpx", "llguidance", "llguidance.hf", "llguidance.torch", "xgrammar", "outlines_core"):
        sys.modules[absent] = unittest.mock.MagicMock()
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    from ray.llm._internal.serve.core.ingress.builder import LLMServingArgs
    from ray.llm._internal.serve.engines.vllm.vllm_engine import _normalize_vllm_engine_kwargs
    from ray.llm._internal.serve.engines.vllm.vllm_models import VLLMEngineConfig
    from ray.serve.schema import ServeDeploySchema
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    engine = {f.name: f for f in dataclasses.fields(AsyncEngineArgs)}
    frontend = {f.name: f for f in dataclasses.fields(FrontendArgs)}
    flags = [json.loads(line) for line in open(ENGINES / "vllm-0.29.0.jsonl", encoding="utf-8")]
    print("no keyword:", *sorted(f["name"] for f in flags if "flag" in f and f["name"] not in engine.keys() | frontend.keys()))
    for file in files:
        body = json.load(open(file, encoding="utf-8"))
        ignored = set(body) - set(ServeDeploySchema.model_fields)
        for application in ServeDeploySchema.model_validate(body).applications:
            given = next(a for a in body["applications"] if a["name"] == application.name)
            ignored |= set(given) - set(type(application).model_fields)
            if ignored:
                sys.exit(f"{file}: Ray Serve would ignore {', '.join(sorted(ignored))}")
            for config in LLMServingArgs.model_validate(application.args).llm_configs:
                made = VLLMEngineConfig.from_llm_config(config)
                arguments = AsyncEngineArgs(**_normalize_vllm_engine_kwargs(made.get_initialization_kwargs()))
                FrontendArgs(**made.frontend_kwargs)
                # The classes take text for a number, and fail when the engine starts.
                wrong = [n for n in made.engine_kwargs if isinstance(getattr(arguments, n), str) and "str" not in str(engine[n].type) and "Literal" not in str(engine[n].type) and "int" in str(engine[n].type)]
                if wrong:
                    sys.exit(f"{file}: {config.model_id}: text in the place of a number: {', '.join(wrong)}")
                print(config.model_id, len(made.placement_bundles), made.placement_strategy, *sorted(made.engine_kwargs), *sorted(made.frontend_kwargs))


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        inside(*sys.argv[2:])
    else:
        outside(*sys.argv[1:])
