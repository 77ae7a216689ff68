"""The nodes of the rig: what kubelets would say about nodes and pods, without containers.

kubelet.py serve             answers for the logs of pods at port 10250, lets deleted pods go, and by the word in the file
                             `mode` does nothing more with the pods that the scheduler has given a node ("hold") or lets
                             them run ("run")
kubelet.py nodes N GPUS      makes the nodes node1 to nodeN, and takes others away
kubelet.py pods              lists the pods
kubelet.py pods STATE NAMESPACE/GLOB [TEXT]
                             gives the status STATE to the pods of which the name matches, after at least one is there
kubelet.py log NAMESPACE/GLOB [CONTAINER]
                             appends the lines of the standard input to the log of a container, else of the first
kubelet.py mode hold|run
kubelet.py relay PORT=PORT...  hands what comes in at the pods' ports on to ports here

A pod of Ray that runs is but its status: its address leads to the Ray of the rig, if there is one, and what it mounts of
config maps below /etc is written there. Each other pod runs as a process, in the rig's namespaces and with Ray's programs
in its path.

GENRM_KUBE_RIG is the folder of the rig. All times are UTC.
"""

import base64
import datetime
import fnmatch
import hashlib
import http.client
import http.server
import json
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import traceback
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "ray"))
import forward  # noqa: E402

RIG = pathlib.Path(os.environ["GENRM_KUBE_RIG"])
HOST = "10.77.0.1"  # of every node
STATES = ("run", "unready", "image", "oom", "fail", "succeed")


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Refused(Exception):
    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code = code


local = threading.local()


def call(method, path, body=None, kind="application/json"):
    """Asks the API server as an administrator. Fails with Refused, or OSError."""
    if not hasattr(local, "connection"):
        context = ssl.create_default_context(cafile=RIG / "pki/ca.crt")
        local.connection = http.client.HTTPSConnection("127.0.0.1", 6443, context=context, timeout=10)
        local.token = (RIG / "tokens/admin").read_text()
    headers = {"Authorization": "Bearer " + local.token, "Content-Type": kind, "User-Agent": "kubelet/v1.34.4"}
    data = None if body is None else json.dumps(body)
    try:
        local.connection.request(method, path, data, headers)
        answer = local.connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException) as e:
        local.connection.close()
        raise OSError(str(e)) from e
    if answer.status >= 400:
        raise Refused(answer.status, text.decode(errors="replace"))
    return json.loads(text)


def url(pod, rest=""):
    meta = pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}{rest}"


def address(pod):
    h = hashlib.sha256(pod["metadata"]["uid"].encode()).digest()
    return f"10.77.{1 + h[0] % 254}.{1 + h[1] % 254}"


def log_file(namespace, pod, container):
    return RIG / "logs" / namespace / pod / container


# Status


def status(pod, state, text):
    """The status of a pod in the given state, as its kubelet would write it."""
    spec = pod["spec"]
    running = state in ("run", "unready", "oom")
    began = pod["status"].get("startTime") or seconds()
    ready = state == "run"
    code = {"oom": 137, "fail": int(text or 1), "succeed": 0}.get(state) if state != "image" else None
    old = {s["name"]: s for s in pod["status"].get("containerStatuses", [])}
    containers = []
    for c in spec["containers"]:
        s = {"name": c["name"], "image": c["image"], "imageID": "", "ready": ready, "started": ready, "restartCount": 0, "state": {}, "lastState": {}}
        if state == "image":
            s["state"]["waiting"] = {
                "reason": "ImagePullBackOff",
                "message": f'Back-off pulling image "{c["image"]}": ErrImagePull: {text or missing(c["image"])}',
            }
        elif state in ("run", "unready"):
            s["state"]["running"] = {"startedAt": seconds()}
            s["imageID"] = c["image"] + "@sha256:" + hashlib.sha256(c["image"].encode()).hexdigest()
            s["started"] = True
        else:
            ended = {"exitCode": code, "reason": {"oom": "OOMKilled", "fail": "Error", "succeed": "Completed"}[state], "startedAt": began, "finishedAt": seconds()}
            if state == "oom" and spec.get("restartPolicy", "Always") != "Never":  # the kubelet starts it again
                s["restartCount"] = old.get(c["name"], {}).get("restartCount", 0) + 1
                s["lastState"] = {"terminated": ended}
                s["state"]["waiting"] = {
                    "reason": "CrashLoopBackOff",
                    "message": f"back-off 10s restarting failed container={c['name']} pod={pod['metadata']['name']}_{pod['metadata']['namespace']}({pod['metadata']['uid']})",
                }
            else:
                s["state"]["terminated"] = ended
        containers.append(s)
    phase = {"image": "Pending", "fail": "Failed", "succeed": "Succeeded"}.get(state, "Running")
    if state == "oom" and spec.get("restartPolicy", "Always") == "Never":
        phase = "Failed"
    why = {} if ready else {"reason": {"succeed": "PodCompleted", "fail": "PodFailed"}.get(state, "ContainersNotReady")}
    out = {
        "phase": phase,
        "hostIP": HOST,
        "hostIPs": [{"ip": HOST}],
        "startTime": began,
        "conditions": [
            {"type": "Initialized", "status": "True", "lastTransitionTime": seconds()},
            {"type": "Ready", "status": str(ready), "lastTransitionTime": seconds(), **why},
            {"type": "ContainersReady", "status": str(ready), "lastTransitionTime": seconds(), **why},
        ],
        "containerStatuses": containers,
    }
    if state != "image":
        out["podIP"] = address(pod)
        out["podIPs"] = [{"ip": address(pod)}]
        out["initContainerStatuses"] = [
            {
                "name": c["name"], "image": c["image"], "imageID": "", "ready": True, "started": False, "restartCount": 0, "lastState": {},
                "state": {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": began, "finishedAt": began}},
            }
            for c in spec.get("initContainers", [])
        ]  # fmt: skip
    if running and state != "oom":
        out["reason"] = None
    return out


def missing(image):
    return f'failed to resolve reference "{image}": {image}: not found'


def put(pod, state, text=""):
    call("PATCH", url(pod, "/status"), {"status": status(pod, state, text)}, "application/strategic-merge-patch+json")
    for c in pod["spec"]["containers"]:
        if state == "image":
            event(pod, c, "Normal", "Pulling", f'Pulling image "{c["image"]}"')
            event(pod, c, "Warning", "Failed", f'Failed to pull image "{c["image"]}": {text or missing(c["image"])}')
            event(pod, c, "Warning", "Failed", "Error: ErrImagePull")
            event(pod, c, "Normal", "BackOff", f'Back-off pulling image "{c["image"]}"')
            event(pod, c, "Warning", "Failed", "Error: ImagePullBackOff")
        elif state in ("run", "unready"):
            event(pod, c, "Normal", "Started", f"Started container {c['name']}")
        elif state == "oom":
            event(pod, c, "Warning", "BackOff", f"Back-off restarting failed container {c['name']} in pod {pod['metadata']['name']}")


def event(pod, container, kind, reason, message):
    meta = pod["metadata"]
    call("POST", f"/api/v1/namespaces/{meta['namespace']}/events", {
        "metadata": {"generateName": meta["name"] + ".", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"],
            "fieldPath": f"spec.containers{{{container['name']}}}",
        },
        "type": kind, "reason": reason, "message": message, "count": 1, "firstTimestamp": seconds(), "lastTimestamp": seconds(),
        "source": {"component": "kubelet", "host": pod["spec"].get("nodeName", "")},
    })  # fmt: skip


# Processes of pods


def start(pod):
    """Lets the pod run: as a status alone where it is Ray's, else as a process of its first container."""
    files(pod)
    if pod["metadata"].get("labels", {}).get("ray.io/node-type") in ("head", "worker"):
        put(pod, "run")
        return
    hosts(pod["metadata"]["namespace"])
    container = pod["spec"]["containers"][0]
    env = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "GENRM_KUBE_RIG")}
    ray = RIG / "ray/venv"
    if ray.exists():
        env["PATH"] = f"{ray}/bin:{env['PATH']}"
    env["RAY_AUTH_MODE"] = "disabled"
    env |= variables(pod, container)
    command = [expand(a, env) for a in container.get("command", []) + container.get("args", [])]
    put(pod, "run")
    log = log_file(pod["metadata"]["namespace"], pod["metadata"]["name"], container["name"])
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    try:
        process = subprocess.Popen(
            command or ["false"], env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as e:
        stamp([f"{e}\n".encode()], log)
        put(pod, "fail", "127")
        return
    processes[pod["metadata"]["uid"]] = process
    threading.Thread(target=follow, args=(pod, process, log), daemon=True).start()


def files(pod):
    """Writes what the pod mounts of config maps below /etc, which is the rig's own."""
    maps = {v["name"]: v["configMap"]["name"] for v in pod["spec"].get("volumes", []) if "configMap" in v}
    for container in pod["spec"]["containers"]:
        for mount in container.get("volumeMounts", []):
            path = pathlib.Path(mount["mountPath"])
            if mount["name"] in maps and path.is_relative_to("/etc"):
                path.mkdir(parents=True, exist_ok=True)
                for name, text in data(pod["metadata"]["namespace"], "configmaps", maps[mount["name"]]).items():
                    (path / name).write_text(text)


def follow(pod, process, log):
    stamp(process.stdout, log)
    code = process.wait()
    code = 128 - code if code < 0 else code
    for _ in range(600):
        try:
            put(call("GET", url(pod)), "fail" if code else "succeed", str(code))
            return
        except Refused as e:
            if e.code == 404:
                return
        except OSError:
            pass
        time.sleep(0.2)


def stamp(lines, log):
    """Appends lines to a log, each behind the time it came."""
    with log.open("ab", buffering=0) as f:
        for line in lines:
            f.write(now().encode() + b" " + line + (b"" if line.endswith(b"\n") else b"\n"))


def variables(pod, container):
    space = pod["metadata"]["namespace"]
    env = {}
    for source in container.get("envFrom", []):
        for kind, field in (("configmaps", "configMapRef"), ("secrets", "secretRef")):
            if field in source:
                for k, v in data(space, kind, source[field]["name"]).items():
                    env[source.get("prefix", "") + k] = v
    for v in container.get("env", []):
        value = v.get("value", "")
        ref = v.get("valueFrom", {})
        if "secretKeyRef" in ref:
            value = data(space, "secrets", ref["secretKeyRef"]["name"])[ref["secretKeyRef"]["key"]]
        elif "configMapKeyRef" in ref:
            value = data(space, "configmaps", ref["configMapKeyRef"]["name"])[ref["configMapKeyRef"]["key"]]
        elif "fieldRef" in ref:
            value = {"metadata.name": pod["metadata"]["name"], "metadata.namespace": space, "status.podIP": address(pod)}.get(ref["fieldRef"]["fieldPath"], "")
        env[v["name"]] = expand(value, env)
    return env


def data(space, kind, name):
    o = call("GET", f"/api/v1/namespaces/{space}/{kind}/{name}")
    if kind == "secrets":
        return {k: base64.b64decode(v).decode() for k, v in o.get("data", {}).items()}
    return o.get("data", {})


def expand(text, env):
    for k, v in env.items():
        text = text.replace(f"$({k})", v)
    return text


def hosts(space):
    """Names the services of a namespace as the cluster's DNS would, in the rig's own /etc/hosts."""
    path = pathlib.Path("/etc/hosts")
    have = path.read_text()
    with path.open("a") as f:
        for s in call("GET", f"/api/v1/namespaces/{space}/services")["items"]:
            name = f"{s['metadata']['name']}.{space}.svc"
            if f" {name} " not in have:
                f.write(f"{HOST} {name} {name}.cluster.local\n")


processes = {}


def serve():
    threading.Thread(target=logs, daemon=True).start()
    known = set()  # that were started, by uid
    while True:
        try:
            mode = (RIG / "mode").read_text().strip()
            for pod in call("GET", "/api/v1/pods?resourceVersion=0")["items"]:
                turn(pod, mode, known)
        except OSError:  # the API server is away
            pass
        except Exception:  # of one look, and said
            traceback.print_exc()
        time.sleep(0.2)


def turn(pod, mode, known):
    uid = pod["metadata"]["uid"]
    if not pod["spec"].get("nodeName"):
        return
    try:
        if pod["metadata"].get("deletionTimestamp"):
            process = processes.pop(uid, None)
            if process and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            call("DELETE", url(pod), {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
        elif mode == "run" and uid not in known and pod["status"]["phase"] == "Pending" and not pod["status"].get("containerStatuses"):
            known.add(uid)
            start(pod)
    except Refused as e:
        if e.code not in (404, 409):
            raise


# Logs


class Logs(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        path, _, query = self.path.partition("?")
        query = dict(urllib.parse.parse_qsl(query))
        part = path.strip("/").split("/")
        if len(part) != 4 or part[0] != "containerLogs":
            self.whole(404, "404 page not found\n")
            return
        _, space, name, container = part
        try:
            state = container_state(space, name, container)
        except (Refused, OSError) as e:
            self.whole(500, str(e))
            return
        if "waiting" in state and query.get("previous") != "true":
            self.whole(400, f'container "{container}" in pod "{name}" is waiting to start: {state["waiting"]["reason"]}')
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for line in lines(space, name, container, query):
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:  # the client has gone
            self.close_connection = True

    def whole(self, code, text):
        self.send_response(code)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


def container_state(space, name, container):
    pod = call("GET", f"/api/v1/namespaces/{space}/pods/{name}")
    for s in pod["status"].get("containerStatuses", []) + pod["status"].get("initContainerStatuses", []):
        if s["name"] == container:
            return s["state"]
    return {"waiting": {"reason": "ContainerCreating"}}


def lines(space, name, container, query):
    path = log_file(space, name, container)
    since = query.get("sinceTime", "")
    if "sinceSeconds" in query:
        then = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=int(query["sinceSeconds"]))
        since = then.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    left = int(query.get("limitBytes", 1 << 62))

    def dress(line):
        nonlocal left
        at, _, text = line.partition(b" ")
        if instant(at.decode()) < instant(since):
            return b""
        out = (line if query.get("timestamps") == "true" else text)[:left]
        left -= len(out)
        return out

    follows = query.get("follow") == "true"
    while follows and not path.exists() and "running" in container_state(space, name, container):
        time.sleep(0.1)
    if not path.exists():
        return
    with path.open("rb") as f:
        have = f.readlines()
        if have and not have[-1].endswith(b"\n"):  # in the midst of being written
            f.seek(-len(have.pop()), os.SEEK_CUR)
        if "tailLines" in query:
            have = have[max(0, len(have) - int(query["tailLines"])) :]
        for line in have:
            if out := dress(line):
                yield out
        while follows and left > 0:
            try:
                over = "running" not in container_state(space, name, container)
            except Refused:
                over = True
            while (line := f.readline()).endswith(b"\n"):
                if out := dress(line):
                    yield out
            f.seek(-len(line), os.SEEK_CUR)
            if over:
                return
            time.sleep(0.2)


def instant(text):
    """RFC 3339 of any precision, as something that can be compared."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    return whole, fraction.ljust(9, "0")


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def get_request(self):
        connection, peer = super().get_request()
        return self.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), peer

    def handle_error(self, *_):
        pass


def logs():
    server = Server(("0.0.0.0", 10250), Logs)
    server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.context.load_cert_chain(RIG / "pki/server.crt", RIG / "pki/server.key")
    server.serve_forever()


# Commands


def nodes(count, gpus):
    want = [f"node{i + 1}" for i in range(count)]
    for node in call("GET", "/api/v1/nodes")["items"]:
        if node["metadata"]["name"] not in want:
            call("DELETE", "/api/v1/nodes/" + node["metadata"]["name"])
    for name in want:
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        if gpus:
            labels |= {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
        try:
            call("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
        except Refused as e:
            if e.code != 409:
                raise
        size = {"cpu": "128", "memory": "2Ti", "ephemeral-storage": "4Ti", "hugepages-2Mi": "0", "pods": "110", "nvidia.com/gpu": str(gpus)}
        call("PATCH", f"/api/v1/nodes/{name}/status", {"status": {
            "capacity": size, "allocatable": size,
            "addresses": [{"type": "InternalIP", "address": HOST}, {"type": "Hostname", "address": name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "kubeletVersion": "v1.34.4", "containerRuntimeVersion": "containerd://2.1.4", "operatingSystem": "linux", "architecture": "amd64",
                "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "6.12.0", "osImage": "Debian GNU/Linux 12 (bookworm)", "kubeProxyVersion": "",
            },
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
                "lastHeartbeatTime": seconds(), "lastTransitionTime": seconds(),
            }],
        }}, "application/strategic-merge-patch+json")  # fmt: skip


def select(pattern, accept=lambda pod: True):
    """The pods that a pattern names; waits a minute for the first."""
    space, _, glob = pattern.partition("/")
    for _ in range(300):
        pods = [p for p in call("GET", f"/api/v1/namespaces/{space}/pods")["items"] if fnmatch.fnmatchcase(p["metadata"]["name"], glob) and accept(p)]
        if pods:
            return pods
        time.sleep(0.2)
    sys.exit(f"rig: after a minute no pod is {pattern}, on a node")


def main():
    match sys.argv[1:]:
        case ["serve"]:
            serve()
        case ["nodes", count, gpus]:
            nodes(int(count), int(gpus))
        case ["mode", ("hold" | "run") as mode]:
            (RIG / "mode").write_text(mode + "\n")
        case ["relay", *pairs]:
            for pair in pairs:
                here, there = map(int, pair.split("="))
                threading.Thread(target=forward.accept, args=(socket.create_server(("0.0.0.0", here)), there)).start()
        case ["pods"]:
            for p in call("GET", "/api/v1/pods")["items"]:
                m, s = p["metadata"], p["status"]
                why = [r.get("reason", "") for c in s.get("containerStatuses", []) for r in c["state"].values()]
                why += [c.get("message", "") for c in s.get("conditions", []) if c["type"] == "PodScheduled" and c["status"] == "False"]
                print(f"{m['namespace']}/{m['name']}", p["spec"].get("nodeName", "-"), s["phase"], *[w for w in why if w])
        case ["pods", state, pattern, *text] if state in STATES and len(text) <= 1:
            for p in select(pattern, lambda p: p["spec"].get("nodeName")):
                put(p, state, *text)
                print(f"{p['metadata']['namespace']}/{p['metadata']['name']}")
        case ["log", pattern, *container] if len(container) <= 1:
            p = select(pattern)[0]
            log = log_file(p["metadata"]["namespace"], p["metadata"]["name"], *container or [p["spec"]["containers"][0]["name"]])
            log.parent.mkdir(parents=True, exist_ok=True)
            stamp(sys.stdin.buffer, log)
        case _:
            sys.exit(2)


if __name__ == "__main__":
    main()
