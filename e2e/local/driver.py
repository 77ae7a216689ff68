#!/usr/bin/env python3
"""Stands for train.py and gym: joins the run's Ray, records what it was given, and ends as it is told.

GENRM_E2E_RECORD names the file of the record; GENRM_E2E_END is an exit status, KILL, or wait, which is done beside
actors that have processes of their own.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import ray


@ray.remote
def look():
    return {"env": dict(os.environ)}


@ray.remote
class Judge:
    """Holds a GPU, and processes that get ever harder to find, as engines do."""

    def start(self):
        subprocess.Popen(["sleep", "3600"])
        subprocess.Popen(["sleep", "3600"], start_new_session=True)
        subprocess.Popen(["sleep", "3600"], start_new_session=True, env={"PATH": os.environ["PATH"]})
        return os.getpid()


def main():
    ray.init()
    gpus = int(ray.cluster_resources().get("GPU", 0))
    shares = [1, gpus] if gpus else [0]
    record = {
        "argv": sys.argv[1:],
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "address": ray.get_runtime_context().gcs_address,
        "gpus": gpus,
        "nodes": len(ray.nodes()),
        "tasks": [ray.get(look.options(num_gpus=n).remote()) for n in shares],
        "token_mode": token_mode(),
    }
    end = os.environ["GENRM_E2E_END"]
    judges = []
    if end == "wait":
        judges = [Judge.options(num_gpus=1 if gpus else 0).remote() for _ in range(2)]
        ray.get([judge.start.remote() for judge in judges])
    path = pathlib.Path(os.environ["GENRM_E2E_RECORD"])
    new = path.with_suffix(".new")
    new.write_text(json.dumps(record))
    new.rename(path)
    print("recorded", flush=True)
    match end:
        case "wait":  # asks Ray for nothing, so that it does not notice Ray's end
            time.sleep(3600)
        case "KILL":
            os.kill(os.getpid(), signal.SIGKILL)
        case status:
            sys.exit(int(status))


def token_mode():
    path = os.environ.get("RAY_AUTH_TOKEN_PATH", "")
    return oct(os.stat(path).st_mode & 0o777) if path else None


if __name__ == "__main__":
    main()
