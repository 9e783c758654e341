"""Whole runs through a proxy that breaks one request: they go through, or say why and resume; nothing is trained twice."""

import asyncio

import pytest

from nat_finetune.config.load import load_config
from nat_finetune.errors import NatFinetuneError
from nat_finetune.finetune import finetune, new_run
from nat_finetune.report.progress import NullProgress
from nat_finetune.testing.art_server import art_app
from nat_finetune.testing.faults import Fault, FaultKind, faulty
from nat_finetune.testing.serving import serving
from tests.plugins.openpipe_art.test_nats_config import migrated, their_components

__all__ = ["migrated", "their_components"]

PATHS = ("healthcheck", "openapi", "register", "_get_step", "_prepare", "_train_model", "v1/models", "v1/chat")
KINDS = {
    "drop_before": Fault(FaultKind.DROP_BEFORE),
    "drop_after": Fault(FaultKind.DROP_AFTER),
    "429": Fault(FaultKind.STATUS, code=429, headers={"retry-after": "0"}),
    "500": Fault(FaultKind.STATUS, code=500),
    "500_after": Fault(FaultKind.STATUS_AFTER, code=500),
    "slow": Fault(FaultKind.SLOW, seconds=0.2),
    "half_stream": Fault(FaultKind.HALF_STREAM),
    "truncated": Fault(FaultKind.TRUNCATED_JSON),
    "restart": Fault(FaultKind.RESTART, seconds=0.2),
}
UPDATES = 2
SHORT = ("finetuning.validation=null", "trainer_adapters.art.lost_stream_seconds=0.5", "finetuning.seed=1")
ONCE_IN_A_WHILE = [("_train_model", "half_stream"), ("_train_model", "drop_before"), ("_get_step", "truncated"),
                   ("v1/chat", "500")]  # fmt: skip
ALL = [pytest.param(path, kind, marks=() if (path, kind) in ONCE_IN_A_WHILE else pytest.mark.slow, id=f"{kind}-{path}")
       for path in PATHS for kind in KINDS]  # fmt: skip


@pytest.mark.parametrize(("path", "kind"), ALL)
def test_a_broken_request_costs_no_update_and_repeats_none(migrated, their_components, tmp_path, path, kind):
    generation = "0.4" if (PATHS.index(path) + list(KINDS).index(kind)) % 2 else "0.5"
    app = art_app(tmp_path / "art", generation)
    fault = KINDS[kind]
    broken = Fault(fault.kind, None, f" /{path}", 1, fault.code, fault.headers, fault.seconds)
    with serving(app) as server, faulty(server.url, broken) as proxy:
        port = proxy.url.rsplit(":", 1)[1]
        overrides = [*SHORT, f"trainer_adapters.art.backend.port={port}", f"finetuning.num_epochs={UPDATES}"]
        loaded = load_config(migrated, overrides=overrides, registry=their_components)
        store, errors = new_run(loaded, tmp_path / "runs"), []
        for _ in range(3):
            try:
                report = asyncio.run(finetune(loaded, their_components, store, NullProgress()))
                break
            except NatFinetuneError as error:
                errors.append(f"{type(error).__name__}: {error}")
        seen = [passed for passed in proxy.seen if passed.fault is not None]
    assert seen, "the fault came to pass"
    assert len(errors) <= 1, errors
    assert report["exit_code"] == 0
    assert app.state.art.step({"project": "trainer_project", "name": "trainer_run"}) == UPDATES, "none lost, none twice"
    assert [update["step"] for update in report["backend"]] == list(range(UPDATES))
    print(f"\n{generation} {kind} at {path}: {'through' if not errors else 'resumed after ' + errors[0][:160]}")
