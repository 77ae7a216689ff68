"""The catalogue format: turns argparse options into the JSON lines that the Go package embeds.

One line an option, keyed by the name a user writes: the long option without its dashes and with `_`
for `-`. Every other spelling gets a short line that points at it. The lines are sorted by name (byte
order), so that a reader can search the text by halves and decode one line. `help` sentences are read for
one bit (does it speak of JSON?) and never stored.

An option is described by a plain dict, which a live parser (`options_of`) or a recorded dump fills alike:

    flags     spellings in the parser's order, `--no-x` of a BooleanOptionalAction included
    action    class name of the action: without a leading `_`, without `Action` at the end
    dest      name in the parsed result; may be absent in a dump
    type      name of the converter, None for a plain string
    nargs, const, default, choices, required, help, deprecated, source
"""

import argparse
import dataclasses
import enum
import json
import signal

# What a converter makes of its word: type and further fields of the line. A converter that is not listed
# stops the generator: a new one has to be looked at, not guessed.
# `words` is a regular expression for the strings that an int option takes besides integers.
CONVERTERS = {
    None: {"type": "string"},
    "str": {"type": "string"},
    "int": {"type": "int"},
    "float": {"type": "float"},
    "bool": {"type": "bool"},  # bool("False") is True; Go's Flag.Bool knows
    "loads": {"type": "json"},
    "json.loads": {"type": "json"},
    # SGLang
    "human_readable_int": {"type": "int", "human_int": True, "words": r"[0-9]+(\.[0-9]+)?[kMGT]|[0-9]+[KMGT]i"},
    "json_list_type": {"type": "json", "shape": "list"},
    "nullable_str": {"type": "string", "optional": True},
    "parse_cuda_graph_config_arg": {"type": "json", "shape": "object"},
    # Relax
    "_positive_int": {"type": "int"},
    # Megatron. The *_freq_type options take an integer or a Python list expression such as "[0]*3+[1]*58".
    "tuple_type": {"type": "string"},
    "moe_freq_type": {"type": "string", "number_ok": True},
    "no_rope_freq_type": {"type": "string", "number_ok": True},
    "la_freq_type": {"type": "string", "number_ok": True},
    "_add_inference_args.<locals>.<lambda>": {"type": "string"},
    "ArgumentGroupFactory._get_enum_kwargs.<locals>.enum_type_handler": {"type": "string"},
}

# Zero-argument actions, and those that take words. `store_const` and `no_op` are flags without an effect of
# their own name: they set another destination, or nothing.
SWITCHES = {
    "StoreTrue": "store_true",
    "StoreFalse": "store_false",
    "StoreConst": "store_const",
    "BooleanOptional": "boolean_optional",
    "DeprecatedStoreTrue": "store_true",
    "DeprecatedStoreConst": "store_const",
    "Deprecated": "no_op",
}
STORES = {"Store": "store", "Append": "append", "DeprecatedAliasStore": "store", "LoRAPath": "store"}
SKIPPED = {"Help", "Version"}  # they print and exit

FIELDS = (  # order in a line; absent when empty, false or null
    "name", "flag", "type", "shape", "nargs", "choices", "words", "default", "action", "negative", "aliases",
    "deprecated", "human_int", "number_ok", "optional", "json_loose", "required", "source",
)  # fmt: skip


def name_of(flag):
    return flag.lstrip("-").replace("-", "_")


def describe(option):
    """The full line of one option, as a dict; None for an option without a value to set (--help)."""
    action = option["action"]
    if action in SKIPPED:
        return None
    longs = [f for f in option["flags"] if f.startswith("--")]
    negatives = [f for f in longs if f.startswith("--no-")] if action == "BooleanOptional" else []
    spellings = [f for f in option["flags"] if f not in negatives]
    flag = next(f for f in spellings if f.startswith("--"))
    line = {
        "name": name_of(flag),
        "flag": flag,
        "aliases": [f for f in spellings if f != flag],
        "negative": negatives[0] if negatives else "",
        "deprecated": option.get("deprecated", False) or action.startswith("Deprecated"),
        "required": option.get("required", False),
        "source": option.get("source", ""),
        "default": plain(option.get("default")),
    }
    if action in SWITCHES:
        line.update(type="bool", action=SWITCHES[action])
        # In the user's terms: a switch that is not given is false, whatever its destination then holds, unless
        # the destination is None, which programs read as "decide yourself".
        if action in ("StoreFalse", "StoreConst", "DeprecatedStoreConst", "Deprecated"):
            line["default"] = None if action == "StoreFalse" and option.get("default") is None else False
    else:
        line["action"] = STORES[action]
        line.update(converter(option))
        if None in (option.get("choices") or []):
            option, line["optional"] = {**option, "choices": [c for c in option["choices"] if c is not None]}, True
        line["nargs"] = "" if option.get("nargs") is None else str(option["nargs"])
        line["choices"] = choices(option)
        if line["default"] in (option.get("choices") or []):  # an enum member's name for its value
            line["default"] = line["choices"][option["choices"].index(line["default"])]
        if line["type"] == "json" and isinstance(line["default"], str):
            line["default"] = json.loads(line["default"])
        if line["type"] == "string" and "json" in (option.get("help") or "").lower():
            line["json_loose"] = True
    if line["default"] is None and not line["required"]:
        line["optional"] = True
    return {k: line[k] for k in FIELDS if k in line and (line[k] is not None if k == "default" else line[k])}


def converter(option):
    kind = option.get("type")
    if isinstance(kind, dict):
        return kind
    if kind not in CONVERTERS:
        raise SystemExit(f"{option['flags'][0]}: unknown converter {kind!r}: add it to CONVERTERS")
    return CONVERTERS[kind]


def choices(option):
    values = option.get("choices")
    if not values:
        return []
    if "enum_type_handler" in str(option.get("type")) and isinstance(values[0], int):
        return [signal.Signals(v).name for v in values]  # the handler looks words up by member name
    return [plain(v) for v in values]


def plain(value):
    """A default or choice as JSON; enum members by name or value; what has no JSON form is None."""
    if value == argparse.SUPPRESS:
        return None
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return None  # a config object that the engine fills in by itself
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(v) for v in value)
    if isinstance(value, str) and value.startswith("<") and value.endswith(">") and "." in value:
        return value[1:-1].split(":")[0].split(".")[-1]  # recorded repr of an enum member
    json.dumps(value)
    return value


def lines(options):
    """All lines of a catalogue, sorted by name; raises on two options that claim one name."""
    full = [d for d in map(describe, options) if d]
    full = join_negatives(full)
    table = {d["name"]: d for d in full}
    if len(table) != len(full):
        seen = set()
        raise ValueError("two options with one name: %s" % [d["name"] for d in full if d["name"] in seen or seen.add(d["name"])])
    for d in full:
        for spelling, key in [(a, "alias_of") for a in d.get("aliases", [])] + [(d.get("negative", ""), "negative_of")]:
            short = name_of(spelling)
            if short and short != d["name"]:
                if short in table and table[short] != {"name": short, key: d["name"]}:
                    raise ValueError(f"{spelling} of {d['flag']} is taken: {table[short]}")
                table[short] = {"name": short, key: d["name"]}
    return [json.dumps(table[n], separators=(",", ":"), ensure_ascii=False) for n in sorted(table)]


def join_negatives(full):
    """Pairs `--x` (store_true) and `--no-x` (store_false) of one destination: the second is the negative form of
    the first. A parser keeps one default a destination, so two different defaults are two destinations."""
    by_flag = {d["flag"]: d for d in full}
    gone = set()
    for d in full:
        other = by_flag.get("--no-" + d["flag"][2:])
        if d["action"] == "store_true" and other and other["action"] == "store_false" and d.get("default") == other.get("default"):
            d["negative"] = other["flag"]
            gone.add(other["name"])
    ordered = [d for d in full if d["name"] not in gone]
    return [{k: d[k] for k in FIELDS if k in d} for d in ordered]
