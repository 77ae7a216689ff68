"""The environments in which the engines' parsers run: a virtual environment for each release, with the released
package and only what its parser imports. Nothing is fetched but from the package index, by pip and uv.

environments/<engine>-<version>.txt pins every package. A new release's file is made from its predecessor's: try
generate.py, add what "No module named" asks for in the version that `uv pip compile` resolves for the release.
"""

import fcntl
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys

import cudastub

HERE = pathlib.Path(__file__).resolve().parent
UV = "0.13.9"


def prepare(engine, version, cache):
    """Returns the python of the release's environment under the folder `cache`, and builds it there the first time
    (1 to 3 minutes, 2 GB). Safe to call from several processes. Needs gcc."""
    pins = HERE / "environments" / f"{engine}-{version}.txt"
    if not pins.exists():
        raise SystemExit(f"generate.py: {engine} {version} is not known: {pins.relative_to(HERE)} is missing")
    recipe = b"".join(p.read_bytes() for p in (pins, pathlib.Path(__file__), pathlib.Path(cudastub.__file__)))
    key = hashlib.sha256(recipe + platform.python_version().encode()).hexdigest()[:12]
    cache.mkdir(parents=True, exist_ok=True)
    home = cache / f"{engine}-{version}-{key}"
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "ready").exists():
            for old in cache.glob(f"{engine}-{version}-*"):
                shutil.rmtree(old)
            build(engine, version, pins, home, cache)
            (home / "ready").touch()
    return home / "bin" / "python"


def build(engine, version, pins, home, cache):
    uv = tool(cache)
    python = home / "bin" / "python"
    install = [uv, "pip", "install", "--python", python, "--no-deps", "--compile-bytecode"]
    run(uv, "venv", "--python", sys.executable, home)
    run(*install, "--requirements", pins)
    purelib = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    cudastub.install(subprocess.check_output(purelib, text=True).strip())
    if engine == "vllm":
        # Its wheel is half a gigabyte of kernels. The source package builds one without any device, of the same Python
        # files; the build imports torch, so it comes after the rest.
        run(*install, "--no-build-isolation", "--no-binary", "vllm", f"vllm=={version}", VLLM_TARGET_DEVICE="empty")


def tool(cache):
    """uv, installed by pip into a folder of its own: the system's Python may be closed to packages."""
    home = cache / f"uv-{UV}"
    if not (home / "bin" / "uv").exists():
        run(sys.executable, "-m", "pip", "install", "--quiet", "--target", home, f"uv=={UV}")
    return home / "bin" / "uv"


def run(*command, **variables):
    environment = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")}
    subprocess.run(command, check=True, env={**environment, **variables})


def call(python, *arguments, input=None):
    """Runs a program in a prepared environment and returns what it prints. It sees none of the caller's variables, so
    that no setting of this machine becomes a fact of the engine."""
    environment = {
        "PATH": os.defpath,
        "HOME": str(python.parents[1]),  # and none of its files
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    result = subprocess.run([python, *arguments], env=environment, input=input, capture_output=True, encoding="utf-8")
    if result.returncode:
        raise SystemExit(f"{' '.join(map(str, arguments))}: exit status {result.returncode}\n{result.stderr[-4000:]}")
    return result.stdout
