"""Against the test server: what is asked, what is sampled from, and what becomes of an update that goes wrong."""

import json
import math

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from nat_finetune.errors import AgreementError, BackendError, ServiceError
from nat_finetune.remote.interfaces import RemoteAdapter
from nat_finetune.testing.faults import Fault, FaultKind, faulty
from nat_finetune.testing.serving import serving
from nat_finetune.types import JobState, PolicyRef
from tests.plugins.openpipe_art.bench import GENERATIONS, PROMPT, SECRET, art, config, connected, groups, trained

HELLO = [{"role": "user", "content": PROMPT}]


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_an_update(tmp_path, generation):
    with art(tmp_path / "art", generation) as (server, state):
        async with connected(config(server.url), tmp_path) as (adapter, policy):
            assert isinstance(adapter, RemoteAdapter)
            before = await policy.chat(HELLO)
            _, _, seen, result = await trained(adapter)
            after = await policy.chat(HELLO)
            assert adapter.serving()
    assert (result.policy, result.optimiser_steps) == (PolicyRef("policy", 1, "m@1"), 1)
    assert (before.policy, after.policy) == (PolicyRef("policy", 0, "m@0"), result.policy)
    assert result.tokens_trained == (4 if generation == "0.5" else None)
    assert result.metrics["canary_moved"] > 0
    assert {"loss", "entropy", "grad_norm"} <= result.metrics.keys()
    assert seen[-1].state is JobState.COMPLETED
    (body,) = [request.json for request in server.of("POST", "/_train_model")]
    kl = "beta" if generation == "0.4" else "kl_penalty_coef"
    assert body["config"] == {"learning_rate": 2e-5, kl: 0.25}, "as configured"
    assert body["dev_config"] == ({} if generation == "0.4" else {kl: 0.25}), "where the loss of 0.5.x reads it"
    asked = [request.json["model"] for request in server.of("POST", "/v1/chat")]
    assert asked[-1] == ("m" if generation == "0.4" else "m@1")
    assert state.step({"project": "p", "name": "m"}) == 1
    probabilities = [math.exp(value) for value in state.policy({"project": "p", "name": "m"}, 1).logprobs(HELLO)]
    assert max(probabilities) == probabilities[0], "what earned more is more likely"


async def test_every_request_of_the_endpoint_carries_the_key_and_no_file_or_message_does(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with art(tmp_path / "art") as (server, _):
        async with connected(config(server.url), folder) as (adapter, _):
            spec, ref, _, result = await trained(adapter)
            adapter.save_state(folder)
    assert {request.headers["authorization"] for request in server.of("GET", "/v1")} == {f"Bearer {SECRET}"}
    assert not [r.path for r in server.requests if "authorization" in r.headers and not r.path.startswith("/v1")]
    for path in folder.rglob("*"):
        assert path.is_dir() or SECRET not in path.read_text()
    assert SECRET not in repr((spec, ref, result))


@pytest.mark.parametrize(
    ("misbehaviour", "error", "says"),
    [
        ("stale", AgreementError, "answers exactly as the step before"),
        ("base_answers", BackendError, "'base' answered"),
        ("nothing_trained", BackendError, "without an optimiser step"),
        ("step_ahead", BackendError, "something else trains it"),
        ("cut_unmade", BackendError, "the update was not made"),
    ],
)
@pytest.mark.parametrize("generation", GENERATIONS)
async def test_an_update_that_went_wrong_is_no_success(tmp_path, generation, misbehaviour, error, says):
    with art(tmp_path / "art", generation) as (server, state):
        async with connected(config(server.url), tmp_path) as (adapter, _):
            state.misbehave.append(misbehaviour)
            with pytest.raises(error, match=says):
                await trained(adapter)


@pytest.mark.parametrize("path", ["_train_model", "_prepare_backend"])
async def test_a_server_that_is_busy_is_asked_again(tmp_path, path):
    busy = Fault(FaultKind.STATUS, None, f" /{path}", 1, 429, {"retry-after": "0"})
    with art(tmp_path / "art") as (server, _), faulty(server.url, busy) as proxy:
        async with connected(config(proxy.url), tmp_path) as (adapter, _):
            *_, result = await trained(adapter)
        assert [passed.fault is not None for passed in proxy.seen if path in passed.path] == [True, False]
    assert result.policy.version == 1


async def test_a_prepare_that_may_have_begun_is_not_sent_again(tmp_path):
    broken = Fault(FaultKind.STATUS, None, " /_prepare_backend", 1, 502)
    said = r"answered 502 .*may have loaded the model all the same.*run --resume"
    with art(tmp_path / "art") as (server, _), faulty(server.url, broken) as proxy, pytest.raises(ServiceError, match=said):
        async with connected(config(proxy.url), tmp_path):
            pass


async def test_a_cut_stream_is_a_success_where_the_step_says_so(tmp_path):
    with art(tmp_path / "art", misbehave=["cut_made"]) as (server, _):
        async with connected(config(server.url), tmp_path) as (adapter, _):
            *_, result = await trained(adapter)
    assert result.policy.version == 1
    assert "broke off" in result.backend["stream"]


async def test_a_cut_stream_is_tried_again_by_the_next_job(tmp_path):
    with art(tmp_path / "art", misbehave=["cut_unmade"]) as (server, _):
        async with connected(config(server.url), tmp_path) as (adapter, _):
            ref = await adapter.submit(await adapter.prepare(groups(), None))
            status = await adapter.wait(ref)
            assert (status.state, status.message.count("still at step 0")) == (JobState.FAILED, 1)
            *_, result = await trained(adapter)
    assert result.policy.version == 1
    assert len(server.of("POST", "/_train_model")) == 2


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_another_process_knows_by_the_step_whether_the_update_was_made(tmp_path, generation):
    with art(tmp_path / "art", generation) as (server, _):
        async with connected(config(server.url), tmp_path) as (adapter, _):
            spec = await adapter.prepare(groups(), None)
            assert await adapter.find(spec) is None
        async with connected(config(server.url), tmp_path) as (adapter, _):
            assert await adapter.find(spec) is None
            with pytest.raises(BackendError, match="prepare it again"):
                await adapter.submit(spec)
            again = await adapter.prepare(groups(), None)
            assert again.key == spec.key
            await adapter.wait(await adapter.submit(again))  # and then the process is gone, before it asked for the result
        async with connected(config(server.url), tmp_path) as (adapter, policy):
            ref = await adapter.find(spec)
            assert ref is not None
            assert (await adapter.wait(ref)).state is JobState.COMPLETED
            result = await adapter.result(ref)
            assert (await policy.chat(HELLO)).policy == result.policy == PolicyRef("policy", 1, "m@1")
            assert result.optimiser_steps == len(await adapter.logs(ref)) == 1, "from what the first one kept"
            with pytest.raises(BackendError, match="no request that cancels"):
                await adapter.cancel(ref)
    assert len(server.of("POST", "/_train_model")) == 1
    assert len(server.of("POST", "/_prepare")) == 1, "the endpoint that runs is used"


async def test_a_lost_update_fails_after_the_patience(tmp_path):
    with art(tmp_path / "art") as (server, _):
        async with connected(config(server.url), tmp_path) as (adapter, _):
            spec = await adapter.prepare(groups(), None)
            ref = adapter._ref(spec)
        async with connected(config(server.url), tmp_path) as (adapter, _):
            seen = []
            assert (await adapter.wait(ref, on_status=seen.append)).state is JobState.FAILED
            assert await adapter.lost(ref)
    assert [status.state for status in seen] == [JobState.RUNNING, JobState.FAILED]


async def test_a_cancelled_update(tmp_path):
    with art(tmp_path / "art") as (server, _):
        slow = Fault(FaultKind.SLOW, match="/_train_model", seconds=30)
        with faulty(server.url, slow) as proxy:
            async with connected(config(proxy.url), tmp_path) as (adapter, _):
                ref = await adapter.submit(await adapter.prepare(groups(), None))
                assert (await adapter.status(ref)).state is JobState.RUNNING
                await adapter.cancel(ref)
                assert (await adapter.status(ref)).state is JobState.CANCELLED


async def test_a_model_that_another_run_has_trained_is_refused(tmp_path):
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
    with art(tmp_path / "art") as (server, _):
        async with connected(config(server.url), tmp_path / "1") as (adapter, _):
            await trained(adapter)
        with pytest.raises(BackendError, match=r"at step 1, this run at step 0.* another backend.name, .* start_step: 1"):
            async with connected(config(server.url), tmp_path / "2"):
                pass
        async with connected(config(server.url), None) as (adapter, _):
            with pytest.raises(BackendError, match="Another run has trained it"):  # what doctor says of such a config
                await adapter.health()
        async with connected(config(server.url, start_step=1), tmp_path / "2") as (adapter, _):
            *_, result = await trained(adapter)
    assert result.policy == PolicyRef("policy", 1, "m@2")


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_checkpoint_survives_a_restart_of_everything(tmp_path, generation):
    kept = [tmp_path / "first", tmp_path / "second"]
    with art(tmp_path / "art", generation) as (server, _):
        async with connected(config(server.url), tmp_path) as (adapter, _):
            for step, folder in enumerate(kept):
                await trained(adapter, step)
                folder.mkdir()
                adapter.save_state(folder)
    with art(tmp_path / "art", generation) as (server, state):
        async with connected(config(server.url), tmp_path) as (adapter, policy):
            assert state.prepared == ["m"]
            adapter.load_state(kept[1])
            assert (adapter.serving(), (await policy.chat(HELLO)).policy.version) == (True, 2)
            adapter.load_state(kept[0])  # as for the best checkpoint at the end of a run
            assert adapter.serving() is (generation == "0.5")
            if generation == "0.5":
                assert (await policy.chat(HELLO)).policy == PolicyRef("policy", 1, "m@1")
            else:
                with pytest.raises(BackendError, match="m@1"):  # never the newest step in its place
                    await policy.chat(HELLO)
            with pytest.raises(BackendError, match="is at step 2, this run at step 1"):
                await adapter.prepare(groups(2), None)


CHECKPOINTS = [
    ({"step": 3, "version": 3}, "lost checkpoints of this run, or is another one"),
    ({"name": "other"}, "the config says"),
    ({"version": "x"}, "no checkpoint of openpipe_art_trainer_adapter"),
]


@pytest.mark.parametrize(("changes", "says"), CHECKPOINTS)
async def test_a_checkpoint_that_is_not_the_servers_is_refused(tmp_path, changes, says):
    whole = {"project": "p", "name": "m", "base_model": "base", "version": 0, "step": 0}
    (tmp_path / "art.json").write_text(json.dumps(whole | changes))
    with art(tmp_path / "art") as (server, _):
        async with connected(config(server.url), tmp_path) as (adapter, _):
            with pytest.raises(BackendError, match=says):
                adapter.load_state(tmp_path)


async def test_a_resume_refuses_a_server_that_went_on_alone(tmp_path):
    with art(tmp_path / "art") as (server, _):
        async with connected(config(server.url), tmp_path) as (adapter, _):
            adapter.save_state(tmp_path)
            for step in (0, 1):
                await trained(adapter, step)
        async with connected(config(server.url), tmp_path) as (adapter, _):
            with pytest.raises(BackendError, match="is at step 2, this run at step 0"):
                adapter.load_state(tmp_path)


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_old_checkpoints_are_deleted_but_those_that_the_run_keeps(tmp_path, generation):
    with art(tmp_path / "art", generation) as (server, _):
        async with connected(config(server.url, delete_old_checkpoints=True), tmp_path) as (adapter, _):
            for step in range(3):
                await trained(adapter, step)
                if step == 0:
                    (tmp_path / "checkpoints" / "00001").mkdir(parents=True)
                    adapter.save_state(tmp_path / "checkpoints" / "00001")
    left = sorted(path.stem for path in (tmp_path / "art").rglob("checkpoints/*.json"))
    assert left == (["0001", "0002", "0003"] if generation == "0.5" else ["0002", "0003"])


async def test_health_asks_the_configured_port_and_wants_the_right_answer(tmp_path):
    async def well(request):
        return JSONResponse({"status": "fine"})

    says = pytest.raises(BackendError, match="is that an `art run` server")
    with serving(Starlette(routes=[Route("/healthcheck", well)])) as server, says:
        async with connected(config(server.url), tmp_path):
            pass
    assert [request.path for request in server.requests] == ["/healthcheck"]
