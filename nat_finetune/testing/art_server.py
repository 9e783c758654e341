"""A stand-in for `art run` with its inference endpoint, of either generation: it trains a policy of words for real.

    with serving(art_app(folder, generation="0.5")) as server: ...
    python -m nat_finetune.testing.art_server --folder state --generation 0.4 --port 7623

Its state is in a folder, so that it survives a restart. It needs the extra `serve`. Real ART has its endpoint on another port;
here both are one app.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nat_finetune.testing.art_bodies import model_problems, train_problems
from nat_finetune.testing.art_policy import VOCABULARY, WordPolicy, turns_of
from nat_finetune.whole_file import write_whole

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

Generation = Literal["0.4", "0.5"]
Misbehaviour = Literal["stale", "cut_made", "cut_unmade", "nothing_trained", "step_ahead", "base_answers"]
"""What goes wrong, each as often as it is listed: old weights under the new name; a stream that breaks off, the update made
or not; an update of no optimiser step; a step that another client takes; the base model in the place of the trained one."""


class Broken(RuntimeError):
    """Raised to break a stream off."""


@dataclass(slots=True)
class ArtState:
    """Models in a folder: `<project>/<name>/checkpoints/<step>.json`."""

    folder: Path
    generation: Generation
    vocabulary: tuple[str, ...] = VOCABULARY
    misbehave: list[Misbehaviour] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    """Key of the endpoint, by model."""
    prepared: list[str] = field(default_factory=list)
    line_seconds: float = 0.0
    """What a line of a training stream takes."""
    asked: Counter[str] = field(default_factory=Counter)
    """Chat requests, by what they ask: without a seed, the n-th of equal ones has a draw of its own."""

    def takes(self, what: Misbehaviour) -> bool:
        """Whether that goes wrong now; then once less."""
        if what not in self.misbehave:
            return False
        self.misbehave.remove(what)
        return True

    def step(self, model: Mapping[str, Any]) -> int:
        """The newest step of a model."""
        return max((int(path.stem) for path in self._checkpoints(model).glob("*.json")), default=0)

    def policy(self, model: Mapping[str, Any], step: int | None = None) -> WordPolicy | None:
        """The weights of a step; None where it has none."""
        at = self.step(model) if step is None else step
        path = self._checkpoints(model) / f"{at:04d}.json"
        if not path.exists():
            return None
        return WordPolicy(self.vocabulary, json.loads(path.read_text(encoding="utf-8")))

    def save(self, model: Mapping[str, Any], step: int, policy: WordPolicy) -> None:
        """Keep the weights of a step."""
        self._checkpoints(model).mkdir(parents=True, exist_ok=True)
        write_whole(self._checkpoints(model) / f"{step:04d}.json", json.dumps(policy.weights))

    def keep(self, model: Mapping[str, Any], steps: Iterable[int]) -> None:
        """Delete all checkpoints but those."""
        kept = set(steps)
        for path in self._checkpoints(model).glob("*.json"):
            if int(path.stem) not in kept:
                path.unlink()

    def register(self, model: Mapping[str, Any]) -> None:
        """Know a model."""
        folder = self._checkpoints(model)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder.parent / "model.json", json.dumps(dict(model)))

    def models(self) -> list[dict[str, Any]]:
        """All that were registered."""
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.folder.glob("*/*/model.json"))]

    def named(self, name: str) -> tuple[dict[str, Any], WordPolicy] | None:
        """What is served under a name: 0.5 serves `name@step`, 0.4 the newest step under the name alone."""
        for model in self.models():
            base, _, step = name.partition("@")
            if name == model["base_model"]:
                return model, WordPolicy(self.vocabulary)
            if base != model["name"] or (self.generation == "0.4") != (step == "") or not (step or "0").isdigit():
                continue
            policy = self.policy(model, int(step) if step else None)
            if policy is not None:
                return model, policy
        return None

    def names(self) -> list[str]:
        """Everything that is served."""
        found = []
        for model in self.models():
            steps = sorted(int(path.stem) for path in self._checkpoints(model).glob("*.json"))
            names = [model["name"]] if self.generation == "0.4" else [f"{model['name']}@{step}" for step in steps]
            found += [model["base_model"], *names]
        return found

    def _checkpoints(self, model: Mapping[str, Any]) -> Path:
        return self.folder / str(model["project"]) / str(model["name"]) / "checkpoints"


def art_app(
    folder: Path,
    generation: Generation = "0.5",
    *,
    vocabulary: Sequence[str] = VOCABULARY,
    misbehave: Sequence[Misbehaviour] = (),
    line_seconds: float = 0.0,
) -> Starlette:
    """The server's app; `app.state.art` is its state."""
    from starlette.applications import Starlette
    from starlette.routing import Route

    state = ArtState(folder, generation, tuple(vocabulary), list(misbehave), line_seconds=line_seconds)
    old = generation == "0.4"
    posts = {
        "/register": _register,
        "/_get_step": _get_step,
        "/_prepare_backend_for_training": _prepare,
        "/_train_model": _train,
        "/_delete_checkpoints" if old else "/_delete_checkpoint_files": _delete,
        **({"/_log": _nothing} if old else {}),
        "/close": _nothing,
        "/v1/chat/completions": _chat,
    }
    gets = {"/healthcheck": _health, "/openapi.json": _description, "/v1/models": _models}
    routes = [Route(path, handler, methods=["POST"]) for path, handler in posts.items()]
    app = Starlette(routes=[*routes, *(Route(path, handler, methods=["GET"]) for path, handler in gets.items())])
    app.state.art = state
    return app


def _state(request: Request) -> ArtState:
    state: ArtState = request.app.state.art
    return state


def _json(value: Any, status: int = 200) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(value, status)


def _unprocessable(problems: list[str]) -> Response:
    return _json({"detail": problems}, 422)


async def _health(request: Request) -> Response:
    return _json({"status": "ok"})


async def _nothing(request: Request) -> Response:
    return _json(None)


async def _description(request: Request) -> Response:
    """As much of FastAPI's description as tells the generations apart."""
    old = _state(request).generation == "0.4"
    kl = "beta" if old else "kl_penalty_coef"
    paths: dict[str, Any] = {route.path: {} for route in request.app.routes if not route.path.startswith("/v1")}
    schemas: dict[str, Any] = {
        "art__types__TrainConfig": {"properties": {"learning_rate": {}, kl: {}}},
        "art__dev__train__TrainConfig": {"properties": {"epsilon": {}} if old else {"epsilon": {}, kl: {}}},
    }
    return _json({"openapi": "3.1.0", "paths": paths, "components": {"schemas": schemas}})


async def _register(request: Request) -> Response:
    state, model = _state(request), await request.json()
    problems = model_problems(model, state.generation)
    if problems:
        return _unprocessable(problems)
    state.register(model)
    return _json(None)


async def _get_step(request: Request) -> Response:
    state, model = _state(request), await request.json()
    problems = model_problems(model, state.generation)
    return _unprocessable(problems) if problems else _json(state.step(model))


async def _prepare(request: Request) -> Response:
    state, body = _state(request), await request.json()
    problems = [f"unknown key {key}" for key in body.keys() - {"model", "config"}]
    problems += model_problems(body.get("model"), state.generation)
    if problems:
        return _unprocessable(problems)
    model, given = body["model"], (body.get("config") or {}).get("server_args", {})
    if state.policy(model) is None:
        state.save(model, state.step(model), WordPolicy(state.vocabulary))
    state.keys[model["name"]] = given.get("api_key") or "default"
    state.prepared.append(model["name"])
    return _json([f"http://0.0.0.0:{request.url.port or 80}/v1", state.keys[model["name"]]])


async def _delete(request: Request) -> Response:
    state, body = _state(request), await request.json()
    if state.generation == "0.4":
        if not {"benchmark", "benchmark_smoothing"} <= request.query_params.keys():
            return _unprocessable(["query: benchmark and benchmark_smoothing are missing"])
        state.keep(body, [state.step(body)])
    else:
        state.keep(body["model"], body["steps_to_keep"])
    return _json(None)


async def _train(request: Request) -> Response:
    from starlette.responses import StreamingResponse

    state, body = _state(request), await request.json()
    problems = train_problems(body, state.generation)
    if problems:
        return _unprocessable(problems)
    return StreamingResponse(_stream(state, body))


async def _stream(state: ArtState, body: Mapping[str, Any]) -> AsyncIterator[str]:
    """One line for each group; the checkpoint is there before the stream ends."""
    model, config = body["model"], body["config"]
    step = state.step(model)
    policy = state.policy(model, step) or WordPolicy(state.vocabulary)
    old = state.generation == "0.4"
    kl = config["beta" if old else "kl_penalty_coef"]
    if not old and body["dev_config"].get("kl_penalty_coef", 0.0) != kl:
        kl = 0.0  # as ART 0.5.17: its loss reads the one of dev_config
    batches = [turns for turns in (turns_of(group, policy.end) for group in body["trajectory_groups"]) if turns]
    if state.takes("nothing_trained"):
        batches = []
    count = len(batches)
    for turns in batches:
        await asyncio.sleep(state.line_seconds)
        told = policy.learn(turns, float(config["learning_rate"]), float(kl))
        yield json.dumps(_line(told, old, count, len(turns), float(config["learning_rate"]))) + "\n"
        if state.takes("cut_unmade"):
            raise Broken("before the checkpoint was written")
    if not count and not old:
        yield json.dumps({"data/step_num_gradient_steps": 0.0, "data/step_num_groups_trainable": 0.0}) + "\n"
    if state.takes("stale"):
        policy = state.policy(model, step) or policy
    state.save(model, step + 1, policy)
    if state.takes("step_ahead"):
        state.save(model, step + 2, policy)
    if state.takes("cut_made"):
        raise Broken("after the checkpoint was written")


def _line(told: Mapping[str, float], old: bool, steps: int, tokens: int, learning_rate: float) -> dict[str, float]:
    if old:
        return {**told, "policy_loss": told["loss"], "num_gradient_steps": steps}
    named = {"loss/train": told["loss"], "loss/entropy": told["entropy"], "loss/grad_norm": told["grad_norm"]}
    counts = {"data/step_num_gradient_steps": float(steps), "data/step_trainer_tokens": float(tokens)}
    return {**named, "loss/learning_rate": learning_rate, **counts}


async def _models(request: Request) -> Response:
    state = _state(request)
    refused = _refused(request, state)
    return refused or _json({"object": "list", "data": [{"id": name, "object": "model"} for name in state.names()]})


def _refused(request: Request, state: ArtState) -> Response | None:
    keys = {f"Bearer {key}" for key in state.keys.values()}
    if request.headers.get("authorization") in keys:
        return None
    return _json({"error": "Unauthorized"}, 401)


async def _chat(request: Request) -> Response:
    state, body = _state(request), await request.json()
    refused = _refused(request, state)
    if refused is not None:
        return refused
    found = state.named(str(body.get("model")))
    if found is None:
        message = f"The model `{body.get('model')}` does not exist."
        return _json({"error": {"message": message, "type": "NotFoundError", "code": 404}}, 404)
    model, policy = found
    name = body["model"]
    if state.takes("base_answers"):
        name, policy = model["base_model"], WordPolicy(state.vocabulary)
    asked = hashlib.sha256(json.dumps([body["messages"], body.get("seed"), name]).encode()).hexdigest()
    state.asked[asked] += body.get("seed") is None
    return _json(_completion(policy, body, name, f"{asked} {state.asked[asked]}"))


def _completion(policy: WordPolicy, body: Mapping[str, Any], name: str, seed: str) -> dict[str, Any]:
    """A word and the end of the turn; where the limit is one token, the word alone."""
    logprobs = policy.logprobs(body["messages"])
    temperature = body.get("temperature")
    word = policy.draw(logprobs, 1.0 if temperature is None else temperature, seed)
    whole = body.get("max_tokens", 16) > 1
    ids = [word, policy.end] if whole else [word]
    tokens = [_token(logprobs, word, body.get("top_logprobs") or 0)]
    if whole:
        tokens.append({"token": f"token_id:{policy.end}", "bytes": None, "logprob": 0.0, "top_logprobs": []})
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": "stop" if whole else "length",
        "message": {"role": "assistant", "content": policy.vocabulary[word], "tool_calls": []},
        "logprobs": {"content": tokens} if body.get("logprobs") else None,
    }
    told: dict[str, Any] = {"id": "chatcmpl-test", "object": "chat.completion", "model": name, "choices": [choice]}
    if body.get("return_token_ids"):
        choice["token_ids"] = ids
        told["prompt_token_ids"] = list(json.dumps(body["messages"]).encode())
    return told


def _token(logprobs: Sequence[float], word: int, alternatives: int) -> dict[str, Any]:
    best = sorted(range(len(logprobs)), key=lambda index: -logprobs[index])[:alternatives]
    others = [{"token": f"token_id:{index}", "bytes": None, "logprob": logprobs[index]} for index in best]
    finite = logprobs[word] if math.isfinite(logprobs[word]) else -9999.0
    return {"token": f"token_id:{word}", "bytes": None, "logprob": finite, "top_logprobs": others}


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until Ctrl-C."""
    import uvicorn

    parser = argparse.ArgumentParser(description="A stand-in for `art run`, for rehearsals.")
    parser.add_argument("--folder", type=Path, required=True, help="where its state is")
    parser.add_argument("--generation", choices=["0.4", "0.5"], default="0.5")
    parser.add_argument("--port", type=int, default=7623)
    given = parser.parse_args(arguments)
    uvicorn.run(art_app(given.folder, given.generation), host="127.0.0.1", port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
