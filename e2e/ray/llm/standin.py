"""A stand-in for ray.serve.llm: deployments of Ray Serve that answer as Ray Serve LLM does, without vLLM or a GPU. The
last part of a judge's model_source may ask for trouble: see Server."""

import asyncio
import json
import os
import time

from ray import serve
from starlette.responses import JSONResponse, StreamingResponse


class Server:
    def __init__(self, config):
        self.model = config["model_loading_config"]["model_id"]
        self.config = config
        what = os.path.basename(config["model_loading_config"]["model_source"])
        if what == "raises":
            raise ValueError("the weights of " + self.model + " are not there")
        if what == "slow":
            time.sleep(600)
        print("judge " + self.model + " is up", flush=True)

    def answer(self, messages):
        return {"id": "1", "object": "chat.completion", "created": int(time.time()), "model": self.model,
                "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": messages[-1]["content"]}}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}

    def told(self):
        """What it was given, for tests."""
        return {"config": self.config, "env": dict(os.environ), "pid": os.getpid()}


class Ingress:
    def __init__(self, judges):
        self.judges = judges

    async def __call__(self, request):
        if request.url.path.endswith("/v1/models"):
            return JSONResponse({"object": "list", "data": [{"id": m, "object": "model"} for m in self.judges]})
        body = json.loads(await request.body() or b"{}")
        judge = self.judges.get(body.get("model"))
        if judge is None:
            return JSONResponse({"error": {"message": "no model " + str(body.get("model"))}}, status_code=404)
        if request.url.path.endswith("/told"):
            return JSONResponse(await judge.told.remote())
        return JSONResponse(await judge.answer.remote(body["messages"]))


# The fields that the real classes know.
FIELDS = {"runtime_env", "model_loading_config", "llm_engine", "engine_kwargs", "accelerator_type", "accelerator_config",
          "placement_group_config", "lora_config", "deployment_config", "server_cls", "experimental_configs", "log_engine_metrics",
          "callback_config"}


def build_openai_app(arguments):
    if set(arguments) - {"llm_configs", "ingress_cls_config", "ingress_deployment_config"}:
        raise ValueError("Extra inputs are not permitted: " + ", ".join(arguments))
    judges = {}
    for config in arguments["llm_configs"]:
        if set(config) - FIELDS:
            raise ValueError("Extra inputs are not permitted: " + ", ".join(set(config) - FIELDS))
        model = config["model_loading_config"]["model_id"]
        group = config["placement_group_config"]
        # As the real builder: the replica's own processor is that of the first bundle.
        bundles = [dict(b) for b in group["bundles"]]
        bundles[0]["CPU"] = bundles[0].get("CPU", 0) + 0.1
        actor = {"num_cpus": 0.1}
        if config.get("runtime_env"):
            actor["runtime_env"] = config["runtime_env"]
        judges[model] = serve.deployment(
            Server, name="LLMServer:" + model.replace("/", "--").replace(".", "_"), ray_actor_options=actor,
            placement_group_bundles=bundles, placement_group_strategy=group["strategy"], **config["deployment_config"],
        ).bind(config)
    return serve.deployment(Ingress, name="OpenAiIngress", ray_actor_options={"num_cpus": 0.1}).bind(judges)
