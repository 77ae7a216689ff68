"""The argument parsers of the engines, as the released packages build them. Runs inside a prepared environment
(environment.py); each function imports its engine, which takes seconds."""

import argparse
import contextlib
import sys
import typing

import catalogue


class Parser(typing.NamedTuple):
    options: argparse.ArgumentParser  # has the options of the server
    converter: typing.Callable  # describes the converter of one of its actions, see catalogue.CONVERTERS
    parse: typing.Callable  # parses an argv without the program's name, as the program does


def parser_of(engine):
    """The Parser of an engine's server. Engines log to standard output while they are imported, so this does not."""
    with contextlib.redirect_stdout(sys.stderr):
        return {"vllm": vllm, "sglang": sglang}[engine]()


def vllm():
    # vLLM reads the command line while it is imported, to decide whether it collects help sentences, and asks its
    # platform for a device while it builds the parser: of 0.29.0, "cuda" is a choice of --mm-processor-device on CUDA
    # alone. So the platform says that it is CUDA, which is where the judges run, and does nothing else of it: the
    # options of 0.29.0 are otherwise those of the release's own CPU platform, and those of 0.24.0 the same on both.
    sys.argv = ["vllm", "serve", "--help=all"]
    import vllm.platforms
    from vllm.platforms.interface import Platform, PlatformEnum

    class Cuda(Platform):
        _enum = PlatformEnum.CUDA
        device_name = device_type = "cuda"
        dispatch_key = "CUDA"

    vllm.platforms._current_platform = Cuda()
    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser  # where 0.29.0 has it
    except ModuleNotFoundError:
        from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    # As `vllm serve` puts them together. The outer parser rewrites the command line before the inner one reads it.
    program = FlexibleArgumentParser(prog="vllm")
    serve = make_arg_parser(program.add_subparsers(dest="subparser").add_parser("serve"))
    return Parser(serve, vllm_converter, lambda argv: program.parse_args(["serve", *argv]))


def vllm_converter(action):
    """vLLM builds its converters from the types of its config classes: closures around closures."""
    kind, checked = action.type, False
    while (name := getattr(kind, "__qualname__", None)) in (OPTIONAL, CHECKED):
        checked = checked or name == CHECKED
        kind = kind.__closure__[0].cell_contents
    # Objects, lists and plain words share converters. The checked ones are of fields that are dictionaries; else the
    # default tells what the program means.
    shape = "object" if checked else {dict: "object", list: "list"}.get(type(action.default), "")
    word_or_object = {"type": "string", "json_loose": True, "shape": "object"}
    count = r"[0-9]+(\.[0-9]+)?[kmgt]|[0-9]+[KMGT]"
    if type(action).__name__ == "LoRAParserAction":
        return word_or_object
    return {
        "loads": {"type": "json", "shape": shape},
        "_compute_kwargs.<locals>.parse_dataclass": {"type": "json", "shape": "object"},
        "union_dict_and_str": {"type": "json", "shape": "object"} if shape else word_or_object,
        "human_readable_int": {"type": "int", "human_int": True, "words": count},
        "human_readable_int_or_auto": {"type": "int", "human_int": True, "words": count + "|auto"},
        "EngineArgs.add_cli_args.<locals>.<lambda>": {"type": "string"},
    }.get(name, name)


OPTIONAL = "optional_type.<locals>._optional_type"  # makes None of an empty word
CHECKED = "parse_type.<locals>._parse_type"  # turns exceptions into argparse's


def sglang():
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(prog="sglang.launch_server")
    ServerArgs.add_cli_args(parser)
    return Parser(parser, sglang_converter, parser.parse_args)


def sglang_converter(action):
    name = getattr(action.type, "__qualname__", None)
    return "json.loads" if name == "loads" else name


def main():
    """parsers.py ENGINE: prints the catalogue of the installed release."""
    parser = parser_of(sys.argv[1])
    print("\n".join(catalogue.lines(catalogue.options_of(parser.options, parser.converter))))


if __name__ == "__main__":
    main()
