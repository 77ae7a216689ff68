"""Compares what genrm writes and says with the real NeMo Gym.

usage: check.py texts           print an experiment of texts that are hard to quote
       check.py check OUT CUE   run the checks on the emitted folders in OUT
"""

import contextlib
import importlib
import importlib.machinery
import io
import json
import os
import re
import sys
import types
import typing
from pathlib import Path

TEXTS = [
    "", " ", "yes", "No", "on", "y", "true", "NULL", "~", "1", "1.5", "1e3", "0x1f", "0o7", "017", "1_000", "12:30:45",
    "2020-01-01", ".inf", "nan", "=", "<<", "-", "- a", "a: b", "a #b", "#a", "&a", "*a", "!a", "%a", "@a", "`a", "'a'",
    '"a"', "\\", "\\'", "a\\", "a\nb", "a\tb", "\x1b\x7f\u0085\u2028", "héllo", "评分", "😀", "a:", ":a", "[a]", "{a: 1}",
    "a, b", "|", ">", "a/b:c", "x@y", "a=b", "a(b)", "$x", "it's",
]  # fmt: skip
NUMBERS = ["0", "-1", "123456789012345", "1.5", "1e-06", "2.5e10", "0.1"]

passed = failed = 0


def expect(what, ok, detail=""):
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
        print(f"FAIL {what}\n{detail}".rstrip())


class Stub:
    """Stands in for vllm, which only a machine with GPUs has."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "vllm":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__path__ = []

        class Parser:
            def __init__(self, **_):
                pass

            def parse_args(self, namespace):
                namespace.enable_return_routed_experts = False
                return namespace

        known = {
            "FlexibleArgumentParser": Parser,
            "make_arg_parser": lambda parser: parser,
            "cli_env_setup": lambda: None,
            "validate_parsed_serve_args": lambda args: None,
        }
        module.__getattr__ = lambda name: known.get(name) or type(name, (), {})


def gym(*argv):
    """Runs the gym command in a child and returns its exit status and output."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 1)
        os.dup2(write, 2)
        os.close(read)
        status = 1
        try:
            from nemo_gym.cli.main import main

            sys.argv = ["gym", *argv]
            main()
            status = 0
        except SystemExit as e:
            status = e.code if isinstance(e.code, int) else int(e.code is not None)
        except BaseException as e:
            print(type(e).__name__, e)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    os.close(write)
    with os.fdopen(read, errors="replace") as f:
        out = f.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), out


CLASSES = {
    "genrm_model": "GenRMModelConfig",
    "local_vllm_model": "LocalVLLMModelConfig",
    "vllm_model": "VLLMModelConfig",
    "openai_model": "SimpleModelServerConfig",
}


def config_class(impl):
    module = importlib.import_module(f"responses_api_models.{impl}.app")
    return getattr(module, CLASSES[impl])


def start(impl, block):
    """Goes as far as a server does before its vLLM: the class, then vLLM's arguments."""
    config = config_class(impl).model_validate({"name": "x", "host": "127.0.0.1", "port": 1, **block})
    if impl not in ("genrm_model", "local_vllm_model") or config.base_url:
        return config, None
    app = importlib.import_module("responses_api_models.local_vllm_model.app")
    app.find_open_port = lambda **_: 4242
    app.get_global_config_dict = lambda: {app.DISALLOWED_PORTS_KEY_NAME: []}
    app.get_hf_token = lambda: None
    server = types.SimpleNamespace(config=config, get_cache_dir=lambda: "/cache")
    args, _ = app.LocalVLLMModel._configure_vllm_serve(server)
    return config, vars(args)


def examples(out):
    from omegaconf import OmegaConf

    folders = sorted(p for p in out.iterdir() if p.name.startswith("gym-"))
    expect("there are examples", len(folders) >= 4, str(folders))
    for folder in folders:
        path = folder / "gym.yaml"
        argv = json.loads((folder / "launch.json").read_text())["argv"]
        expect(f"{folder.name}: the command", argv[:5] == ["gym", "env", "start", "--config", "{file:gym.yaml}"], str(argv))
        status, text = gym("env", "validate", "--strict", "--config", str(path), *argv[5:])
        expect(f"{folder.name}: gym env validate", status == 0 and "Config is valid" in text, text[-2000:])
        config = OmegaConf.load(path)
        for name, entry in config.items():
            if not OmegaConf.is_dict(entry) or "responses_api_models" not in entry:
                continue
            for impl, block in OmegaConf.to_container(entry.responses_api_models, resolve=True).items():
                try:
                    model, args = start(impl, block)
                    unknown = set(block) - set(config_class(impl).model_fields) - {"session_key_headers"}
                    expect(f"{folder.name}: {name} has no field that is ignored", not unknown, str(unknown))
                    lost = {k: v for k, v in block.get("vllm_serve_kwargs", {}).items() if (args or {}).get(k) != v}
                    expect(f"{folder.name}: {name} keeps vLLM's arguments", not lost, str(lost))
                except Exception as e:
                    expect(f"{folder.name}: {name} starts", False, repr(e))


def texts(out):
    """What was written as text comes back as the same text, from YAML and from the command line."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    want = TEXTS
    got = OmegaConf.to_container(OmegaConf.load(out / "texts" / "gym.yaml"), resolve=False)
    for i, text in enumerate(want):
        expect(f"gym.yaml text {text!r}", got["texts"][i] == text and type(got["texts"][i]) is str, repr(got["texts"][i]))
    expect("gym.yaml keys", list(got["keys"]) == [t for t in TEXTS if t], str(list(got["keys"])))
    numbers = [json.loads(n) for n in NUMBERS]
    expect("gym.yaml numbers", got["numbers"] == numbers and [type(x) for x in got["numbers"]] == [type(x) for x in numbers], str(got["numbers"]))
    argv = json.loads((out / "texts" / "launch.json").read_text())["argv"][5:]
    expect("overrides set a key whether it exists or not", all(a.startswith("++") for a in argv), str(argv))
    # The plan writes a literal "{" before what looks like a placeholder as {brace}.
    overrides = OverridesParser.create().parse_overrides([a.replace("{brace}", "{") for a in argv])
    values = {o.key_or_group: o.value() for o in overrides}
    expect("as many overrides as were written", len(values) == len(want) + len(numbers), str(len(values)))
    for i, text in enumerate(want):
        value = values.get(f"t{i}")
        value = getattr(value, "text", value)  # a quoted string keeps its quotes' kind
        expect(f"override text {text!r}", value == text and isinstance(value, str), repr(value))
    for i, number in enumerate(numbers):
        value = values.get(f"n{i}")
        expect(f"override number {number}", value == number and type(value) is type(number), repr(value))


def fields(cue):
    """The fields of each definition of schema/gym.cue with their types, and whether the comment says Required."""
    found, name, comment = {}, None, []
    for line in cue.splitlines():
        if m := re.match(r"(#\w+): \{$", line):
            name = m[1]
            found[name] = {}
        elif line == "}":
            name = None
        elif name and (m := re.match(r"\t(#\w+)$", line)):
            found[name] |= found[m[1]]
        elif name and (m := re.match(r'\t"?(\w+)"?[?!]: (.*)$', line)):
            found[name][m[1]] = (m[2], bool(re.search(r"\bRequired\b", " ".join(comment))))
            comment = []
        elif name and (m := re.match(r"\t// (.*)$", line)):
            comment.append(m[1])
        elif name and not line.startswith("\t\t") and line.strip() not in ("}", "}]"):
            comment = []
    return found


def schema(cue):
    """schema/gym.cue has the fields of the pydantic classes: names, null, required."""
    found = fields(cue)
    for impl, definition in {
        "genrm_model": "#GymGenRMModel",
        "local_vllm_model": "#GymLocalVLLMModel",
        "vllm_model": "#GymVLLMModel",
        "openai_model": "#GymOpenAIModel",
    }.items():
        real = {n: f for n, f in config_class(impl).model_fields.items() if n != "name"}
        ours = {n: t for n, t in found[definition].items() if not n.startswith("_") and n != "session_key_headers"}
        expect(f"{impl}: names", set(real) == set(ours), f"only NeMo Gym's: {set(real) - set(ours)}, only genrm's: {set(ours) - set(real)}")
        for name in sorted(set(real) & set(ours)):
            text, required = ours[name]
            if name in ("host", "port"):  # NeMo Gym fills them in before the class sees them
                continue
            null = type(None) in typing.get_args(real[name].annotation)
            expect(f"{impl}.{name}: null", null == bool(re.search(r"\| null\b", text)), text)
            expect(f"{impl}.{name}: required", real[name].is_required() == required, str(real[name]))


LOCAL = {
    "entrypoint": "app.py",
    "model": "m",
    "return_token_id_information": False,
    "uses_reasoning_parser": True,
    "vllm_serve_kwargs": {"data_parallel_size": 1, "tensor_parallel_size": 8, "pipeline_parallel_size": 1},
    "vllm_serve_env_vars": {"VLLM_RAY_DP_PACK_STRATEGY": "strict"},
}
VLLM = {"entrypoint": "app.py", "base_url": "u", "api_key": "k", "model": "m", "return_token_id_information": False, "uses_reasoning_parser": True}
OPENAI = {"entrypoint": "app.py", "openai_base_url": "u", "openai_api_key": "k", "openai_model": "m"}
KWARGS = LOCAL["vllm_serve_kwargs"]


def without(d, *names):
    return {k: v for k, v in d.items() if k not in names}


def classes():
    """Blocks that a server dies of, with the rule that refuses each."""
    for impl, good in {"genrm_model": LOCAL, "local_vllm_model": LOCAL, "vllm_model": VLLM, "openai_model": OPENAI}.items():
        bad = [("GRM5004", without(good, name)) for name in good]
        bad += [("GRM2003", {**good, "entrypoint": 1}), ("GRM2005", {**good, "entrypoint": None})]
        if good is LOCAL:
            bad += [("GRM5010", {**good, "vllm_serve_kwargs": without(KWARGS, name)}) for name in KWARGS]
            bad += [("GRM5010", {**good, "vllm_serve_kwargs": {**KWARGS, name: 0}}) for name in KWARGS]
            bad += [("GRM5013", {**good, "vllm_serve_env_vars": {}})]
            bad += [("GRM2003", {**good, "vllm_serve_env_vars": {"VLLM_RAY_DP_PACK_STRATEGY": "strict", "A": 1}})]
            bad += [("GRM2005", {**good, "debug": None}), ("GRM2004", {**good, "debug": "maybe"})]
        if good is not OPENAI:
            bad += [
                ("GRM5016", {**good, "supply_prefix_token_ids": True}),
                ("GRM5016", {**good, "supply_prefix_token_ids": True, "return_token_id_information": True, "use_completions_api": True}),
                ("GRM5016", {**good, "supply_prefix_token_ids": True, "return_token_id_information": True, "is_responses_native": True}),
                ("GRM2004", {**good, "reasoning_field": "bothh"}),
                ("GRM2003", {**good, "base_url": 5}),
            ]
        else:
            bad += [("GRM2004", {**good, "max_http_attempts": 0}), ("GRM2005", {**good, "extra_body": None})]
        try:
            start(impl, good)
            expect(f"{impl}: the good block", True)
        except Exception as e:
            expect(f"{impl}: the good block", False, repr(e))
        for code, block in bad:
            try:
                start(impl, block)
                expect(f"{impl}: {code} is refused: {block}", False)
            except Exception:
                expect(f"{impl}: {code}", True)
    # What is lost without a word, so that genrm has to say it.
    _, args = start("genrm_model", {**LOCAL, "vllm_serve_kwargs": {**KWARGS, "host": "h", "data_parallel_size_local": 4, "no_x": True}})
    expect("GRM3006: host is overridden", args["host"] == "0.0.0.0")
    expect("GRM5012: data_parallel_size_local is overridden", args["data_parallel_size_local"] == 1)
    expect("GRM5011: a name that vLLM lacks is kept under that name", args["no_x"] is True)
    _, args = start("genrm_model", {**LOCAL, "vllm_serve_kwargs": {**KWARGS, "max_model_len": "4k"}})
    expect("GRM5021: text stays text", args["max_model_len"] == "4k")
    config, _ = start("openai_model", {**OPENAI, "session_key_headers": ["x"]})
    expect("GRM5018: session_key_headers is dropped", not hasattr(config, "session_key_headers"))


def validate(tmp):
    """Configs that `gym env validate` must refuse, or must not notice, as the rule pages' verdicts say."""

    def server(impl, block, kind="responses_api_models"):
        return {kind: {impl: block}}

    ok = server("openai_model", OPENAI)
    agent = {"entrypoint": "app.py"}
    for code, refused, config in [
        ("good", False, {"o": ok}),
        ("GRM5006", True, {"o": ok, "a": server("simple_agent", {**agent, "m": {"type": "responses_api_models", "name": "x"}}, "responses_api_agents")}),
        ("GRM5007", True, {"o": ok, "x": "???"}),
        ("GRM5008", True, {"o": server("openai_model", {**OPENAI, "openai_model": "${nope}"})}),
        ("GRM5008", True, {"o": server("openai_model", {"_inherit_from": "nope.x"})}),
        ("GRM5009", True, {"o": server("openai_model", {**OPENAI, "openai_model": "${env:X}"})}),
        ("GRM5009", True, {"o": server("openai_model", {**OPENAI, "openai_model": "${x"})}),
        ("GRM5020", True, {"o": ok, "r": server("genrm_compare", agent, "resources_servers")}),
        ("GRM5020", True, {"o": ok, "r": server("genrm_compare", {**agent, "domain": "rlfh"}, "resources_servers")}),
        ("GRM5002", True, {"o": {"responses_api_models": {"openai_model": OPENAI, "vllm_model": VLLM}}}),
        ("GRM5001", False, {"o": {**ok, **server("genrm_compare", {**agent, "domain": "rlhf"}, "resources_servers")}}),
        ("GRM5003", False, {"o": ok, "p": server("opnai_model", OPENAI)}),
        ("GRM5003", False, {"o": ok, "p": server("openai_model", OPENAI, "responses_api_model")}),
        ("GRM5004", False, {"o": ok, "p": server("openai_model", without(OPENAI, "entrypoint"))}),
        ("GRM5004", False, {"o": server("openai_model", without(OPENAI, "openai_model"))}),
        ("GRM5005", False, {"o": server("openai_model", {**OPENAI, "port": 11000})}),
        ("GRM2001", False, {"o": server("openai_model", {**OPENAI, "modell": 1})}),
    ]:
        path = tmp / "config.yaml"
        path.write_text(json.dumps(config))
        status, text = gym("env", "validate", "--strict", "--config", str(path))
        expect(f"{code}: gym env validate {'refuses' if refused else 'does not notice'} {config}", (status != 0) == refused, text[-1500:])


def main():
    if sys.argv[1] == "texts":
        def quote(s):
            return json.dumps(s, ensure_ascii=False).replace("\x7f", "\\u007f").replace("\u0085", "\\u0085").replace("\u2028", "\\u2028")

        server = ", ".join(f"{k}: {json.dumps(v)}" for k, v in OPENAI.items() if k != "openai_api_key")
        print('name: "texts"')
        print(f'gym: config: o: responses_api_models: openai_model: {{{server}, openai_api_key: "EMPTY"}}')
        print(f"gym: config: texts: [{', '.join(map(quote, TEXTS))}]")
        print(f"gym: config: numbers: [{', '.join(NUMBERS)}]")
        print("gym: config: keys: {" + ", ".join(f"{quote(t)}: {i}" for i, t in enumerate(t for t in TEXTS if t)) + "}")
        print("gym: overrides: {" + ", ".join([f"t{i}: {quote(t)}" for i, t in enumerate(TEXTS)] + [f"n{i}: {n}" for i, n in enumerate(NUMBERS)]) + "}")
        return 0
    out, cue = Path(sys.argv[2]), Path(sys.argv[3])
    sys.meta_path.insert(0, Stub())
    os.environ |= {"JUDGE_API_KEY": "k", "HF_TOKEN": "t"}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        import nemo_gym.cli.env  # noqa: F401  imported once: each command runs in a fork
        import nemo_gym.cli.main  # noqa: F401
    for section, args in ((examples, [out]), (texts, [out]), (schema, [cue.read_text()]), (classes, []), (validate, [Path.cwd()])):
        try:
            section(*args)
        except Exception as e:
            expect(f"{section.__name__} ran to its end", False, repr(e))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
