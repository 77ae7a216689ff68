"""The catalogue format: turns argparse options into the JSON lines that the Go package embeds.

One line an option, keyed by the name that a user writes: the long option without its dashes and with `_` for
`-`. Every other spelling gets a short line that points at it. The lines are sorted by name (byte order), so that
a reader can halve its way to one and decode that alone. Help sentences are read for one bit (does the program
take JSON there?) and never stored.

An option is described by a plain dict, which a live parser (`options_of`) or a recording fills alike:

    flags     spellings in the parser's order, with the `--no-x` of a BooleanOptionalAction
    action    class name of the action without a leading `_` and without `Action` at its end
    type      name of the converter, None for a plain string; or a dict in the form of CONVERTERS' values
    default   before the option's own conversion, as argparse keeps it
    dest, nargs, choices, required, help, deprecated, source   (each may be absent)
"""

import argparse
import dataclasses
import enum
import json
import re
import signal

# Per converter: what it takes, as fields of a line. One that is not listed stops the generator: a new converter
# has to be looked at, not guessed. `words` is a regular expression for the strings that an int option takes
# besides integers.
CONVERTERS = {
    None: {"type": "string"},
    "str": {"type": "string"},
    "int": {"type": "int"},
    "float": {"type": "float"},
    "bool": {"type": "bool"},  # bool("False") is True: Flag.BoolForms knows
    "json.loads": {"type": "json"},
    # SGLang
    "human_readable_int": {"type": "int", "human_int": True, "words": r"[0-9]+(\.[0-9]+)?[kMGT]|[0-9]+[KMGT]i"},
    "json_list_type": {"type": "json", "shape": "list"},
    "nullable_str": {"type": "string"},
    "parse_cuda_graph_config_arg": {"type": "json", "shape": "object"},
    # Relax
    "_positive_int": {"type": "int"},
    # Megatron. The freq_types take an integer or a Python list expression such as "[0]*3+[1]*58"; the enum handler
    # takes the names of the members.
    "tuple_type": {"type": "string"},
    "moe_freq_type": {"type": "string", "number_ok": True},
    "no_rope_freq_type": {"type": "string", "number_ok": True},
    "la_freq_type": {"type": "string", "number_ok": True},
    "_add_inference_args.<locals>.<lambda>": {"type": "string"},
    "ArgumentGroupFactory._get_enum_kwargs.<locals>.enum_type_handler": {"type": "string"},
}

# Actions that take no word, and actions that take words. `store_const` sets another destination than its own
# name's, `no_op` none.
SWITCHES = {
    "StoreTrue": "store_true",
    "StoreFalse": "store_false",
    "StoreConst": "store_const",
    "BooleanOptional": "boolean_optional",
    "DeprecatedStoreTrue": "store_true",
    "DeprecatedStoreConst": "store_const",
    "Deprecated": "no_op",
}
STORES = {
    "Store": "store",
    "Append": "append",
    "DeprecatedAliasStore": "store",
    "LoRAPath": "store",
    "LoRAParser": "store",
}
SKIPPED = {"Help", "Version"}  # they print and exit

# How help sentences say that a word is JSON; "path to a JSON config file" is none of them.
SPEAKS_OF_JSON = re.compile(r"\bin JSON (string )?format|\bJSON (string|content|with schema|config\b(?! file))", re.I)

# The fields in the order of a line; those that are empty, false or null are left out.
FIELDS = (
    "name",
    "flag",
    "type",
    "shape",
    "nargs",
    "choices",
    "words",
    "default",
    "action",
    "negative",
    "aliases",
    "deprecated",
    "human_int",
    "number_ok",
    "optional",
    "json_loose",
    "required",
    "source",
)


def options_of(parser, converter):
    """The options of a live parser. `converter` gives an action's `type` (see CONVERTERS)."""
    for action in parser._actions:
        if not action.option_strings:
            continue  # a positional argument
        hidden = [s for s, a in parser._option_string_actions.items() if a is action and s not in action.option_strings]
        yield {
            "flags": [*action.option_strings, *hidden],
            "action": type(action).__name__.removeprefix("_").removesuffix("Action"),
            "dest": action.dest,
            "type": converter(action),
            "nargs": action.nargs,
            "default": action.default,
            "choices": list(action.choices) if action.choices else None,
            "required": action.required,
            "help": action.help,
            "deprecated": bool(getattr(action, "deprecated", False)) or action in getattr(parser, "_deprecated", ()),
        }


def lines(options):
    """All lines of a catalogue, sorted by name. Two options that claim one name are an error."""
    flags = [describe(o) for o in joined(options)]
    table = {}
    for flag in flags:
        if flag["name"] in table:
            raise ValueError(f"two options are called {flag['name']}")
        table[flag["name"]] = flag
    for flag in flags:
        spellings = [(alias, "alias_of") for alias in flag.get("aliases", ())]
        spellings += [(flag["negative"], "negative_of")] if "negative" in flag else []
        for spelling, relation in spellings:
            short = {"name": name_of(spelling), relation: flag["name"]}
            if short["name"] != flag["name"] and table.setdefault(short["name"], short) != short:
                raise ValueError(f"{spelling} of {flag['flag']} is another option's name")
    return [json.dumps(table[n], separators=(",", ":"), ensure_ascii=False) for n in sorted(table)]


def name_of(spelling):
    return spelling.lstrip("-").replace("-", "_")


def describe(option):
    """The full line of one option, as a dict in the order of FIELDS."""
    action, default = option["action"], option.get("default")
    longs = [f for f in option["flags"] if f.startswith("--")]
    negatives = option.get("negatives", [])
    if action == "BooleanOptional":
        negatives = [f for f in longs if f.startswith("--no-")]
    flag = next(f for f in longs if f not in negatives)
    line = {
        "name": name_of(flag),
        "flag": flag,
        "aliases": [f for f in option["flags"] if f != flag and f not in negatives],
        "negative": negatives[0] if negatives else None,
        "deprecated": option.get("deprecated") or action.startswith("Deprecated") or says_deprecated(option),
        "optional": default in (None, argparse.SUPPRESS) and not option.get("required"),
        "required": option.get("required"),
        "source": option.get("source"),
        "default": plain(default),
    }
    if action in SWITCHES:
        line.update(type="bool", action=SWITCHES[action])
        # In the user's terms. A switch that sets the destination of its name is false without being given, unless
        # the destination is then None, which programs read as "decide yourself". One that sets another
        # destination, or sets its own to false, has no default but "not given".
        if line["action"] in ("store_const", "no_op") or (line["action"] == "store_false" and default is not None):
            line.update(default=False, optional=False)
    else:
        line["action"] = STORES[action]
        line.update(words_of(option, line["default"]))
    return {k: line[k] for k in FIELDS if k in line and (line[k] is not None if k == "default" else line[k])}


def words_of(option, default):
    """The fields that describe the words of an option."""
    converter, choices = option.get("type"), option.get("choices") or []
    if not isinstance(converter, dict):
        if converter not in CONVERTERS:
            raise ValueError(f"{option['flags'][0]}: look at converter {converter!r}, then add it to CONVERTERS")
        converter = CONVERTERS[converter]
    fields = {**converter, "nargs": str(option.get("nargs") or ""), "default": default}
    choices = [c for c in choices if c not in (None, "None")]  # of these words the converter makes None, the default
    if converter["type"] == "string" and choices and isinstance(choices[0], int):  # members, looked up by name
        fields["default"] = signal.Signals(default).name if default is not None else None
        choices = [signal.Signals(c).name for c in choices]
    fields["choices"] = sorted(plain(c) for c in choices)  # some parsers take them from a set, in no order
    if converter["type"] == "json" and isinstance(default, str):  # argparse converts a default that is a string
        fields["default"] = json.loads(default)
    if converter["type"] == "string":
        if isinstance(fields["default"], int):
            fields["number_ok"] = True
        if not choices and (default == "{}" or SPEAKS_OF_JSON.search(option.get("help") or "")):
            fields["json_loose"] = True
    return fields


def says_deprecated(option):
    return bool(re.match(r"\W*deprecated\b", option.get("help") or "", re.I))


def plain(value):
    """A default or a choice as JSON. None for what has no such form: a config object that the program builds, or the
    mark that it puts where nothing was given."""
    if type(value).__name__ == "_UnsetType":  # vllm/engine/arg_utils.py of 0.29.0: None is a value of that flag
        return None
    if value == argparse.SUPPRESS or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return None
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value))
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, str) and (member := re.fullmatch(r"<\w+\.(\w+): .*>", value)):
        return member[1]  # a recorded enum member
    json.dumps(value)
    return value


def joined(options):
    """Makes one option of the two `--x` (store_true) and `--no-x` (store_false) of one destination. A recording
    may lack destinations; but a destination has one default, so that two defaults mean two of them."""
    options = [o for o in options if o["action"] not in SKIPPED]
    identity = "dest" if all("dest" in o for o in options) else "default"
    offs = {f: o for o in options if o["action"] == "StoreFalse" for f in o["flags"]}
    for option in options:
        off = offs.get("--no-" + option["flags"][0].lstrip("-"))
        if option["action"] == "StoreTrue" and off and off[identity] == option[identity]:
            option["negatives"] = off["flags"]
            offs = {f: o for f, o in offs.items() if o is not off}
    return [o for o in options if o["action"] != "StoreFalse" or any(o is off for off in offs.values())]
