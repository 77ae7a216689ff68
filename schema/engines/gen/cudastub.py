"""Stand-ins for NVIDIA's libraries, so that the torch of the package index imports without its 2.5 GB of CUDA wheels.

torch is linked against a dozen of them and looks beside its own files first. A stand-in has every symbol, with its
version, that a file of torch asks for; each function answers 100: cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE. So torch
finds no GPU, which is all that building an argument parser asks. Needs gcc (and its binutils), takes 5 seconds.
"""

import collections
import pathlib
import re
import subprocess
import tempfile

NVIDIA = re.compile(r"lib(cu|nv|nccl)\w*\.so")  # names of the libraries
LOOSE = re.compile(r"_*(cu|nccl|nv|NV|fatbin)|_Z\d+(cu|nv)")  # symbols without a version that are NVIDIA's

TEXT = re.compile(r"(cuda|nccl|cudnn|nvrtc)GetError(String|Name)|cublasGetStatus(String|Name)|ncclGetLastError")


def install(site_packages):
    """Puts the stand-ins into torch/lib. Does nothing where the real libraries are."""
    lib = pathlib.Path(site_packages, "torch", "lib")
    files = [*lib.glob("*.so*"), *lib.parent.glob("_C*.so")]
    present = {f.name for f in files}
    needed = {n for f in files for n in re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-dW", f)) if NVIDIA.match(n)}
    versions = collections.defaultdict(set)  # library -> versions that torch asks of it
    wanted = collections.defaultdict(set)  # version -> symbols; "" for those without
    defined = set()
    for file in files:
        library = None
        for line in run("readelf", "-VW", file).splitlines():
            if m := re.search(r"File: (\S+)", line):
                library = m[1]
            elif (m := re.search(r"Name: (\S+)\s+Flags", line)) and library in needed:
                versions[library].add(m[1])
        for line in run("nm", "-D", file).splitlines():
            kind, symbol = line.split()[-2:]
            name, _, version = symbol.partition("@")
            if kind == "U":
                wanted[version.lstrip("@")].add(name)
            elif kind not in "vw":
                defined.add(name)
    loose = {s for s in wanted[""] - defined if LOOSE.match(s)}
    for library in sorted(needed - present):
        build(lib / library, {v: wanted[v] for v in versions[library]}, loose if "cudart" in library else set())


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def build(path, versions, loose):
    """Compiles one library with the symbols of each version, and some without a version."""
    symbols = sorted(loose.union(*versions.values()))
    with tempfile.TemporaryDirectory() as folder:
        source, script = pathlib.Path(folder, "stub.c"), pathlib.Path(folder, "versions")
        source.write_text("".join(f"{definition(s)}\n" for s in symbols if s.isidentifier()))
        nodes = ((version, "; ".join(sorted(names))) for version, names in versions.items())
        script.write_text("".join(f"{version} {{ global: {names}; }};\n" for version, names in nodes))
        flags = ["-w", "-shared", "-fPIC", "-nostdlib", "-fno-builtin", f"-Wl,-soname,{path.name}"]
        if versions:
            flags.append(f"-Wl,--version-script={script}")
        run("gcc", *flags, "-o", path, source)


def definition(symbol):
    if TEXT.fullmatch(symbol):
        return f'const char *{symbol}(void) {{ return "no CUDA here"; }}'
    return f"long {symbol}(void) {{ return 100; }}"
