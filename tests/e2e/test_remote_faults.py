"""Every kind of fault at every request of a remote run: it ends, or says why, and a resume brings it to its end; one job."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from nat_finetune.config.load import load_config
from nat_finetune.errors import NatFinetuneError
from nat_finetune.finetune import continued_run, finetune, new_run
from nat_finetune.registry import Registry
from nat_finetune.report.progress import NullProgress
from nat_finetune.testing.faults import Fault, FaultKind, faulty
from nat_finetune.testing.serving import serving
from tests.e2e.backends import BACKENDS, SECRET
from tests.fixtures.rehearsal import rehearsal_plugin

FAULTS = {
    "drop_before": Fault(FaultKind.DROP_BEFORE),
    "drop_after": Fault(FaultKind.DROP_AFTER),
    "409": Fault(FaultKind.STATUS, code=409),
    "429": Fault(FaultKind.STATUS, code=429, headers={"retry-after": "0"}),
    "500": Fault(FaultKind.STATUS, code=500),
    "500_after": Fault(FaultKind.STATUS_AFTER, code=500),
    "slow": Fault(FaultKind.SLOW, seconds=0.05),
    "half_stream": Fault(FaultKind.HALF_STREAM),
    "truncated_json": Fault(FaultKind.TRUNCATED_JSON),
    "restart": Fault(FaultKind.RESTART, seconds=0.1),
}
QUICK = [("rehearsal", kind) for kind in ("drop_after", "truncated_json", "restart")]


class Bench:
    """A backend's stand-in, and runs against it in this process."""

    def __init__(self, backend, folder: Path) -> None:
        self.backend, self.folder = backend, folder
        self.registry = Registry.installed()
        self.registry.add_module(rehearsal_plugin, origin="test")
        (folder / "server").mkdir(parents=True)

    def ended(self, loaded, store) -> str | None:
        try:
            asyncio.run(finetune(loaded, self.registry, store, NullProgress()))
        except NatFinetuneError as error:
            return str(error)
        return None

    @property
    def started(self) -> int:
        return self.backend.started(self.folder / "server")


@pytest.fixture
def bench(request, tmp_path, monkeypatch, caplog):
    backend = next(b for b in BACKENDS if b.name == request.param)
    for name, value in {"NO_PROXY": "127.0.0.1", **backend.environment}.items():
        monkeypatch.setenv(name, value)
    caplog.set_level(logging.DEBUG)
    yield lambda name: Bench(backend, tmp_path / name)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and "server" not in path.parts]
    assert [str(path) for path in files if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in caplog.text


def survived(bench, kind: str, number: int) -> str:
    """How a run with one fault came to its end: `through`, `resumed`, or `not hit`."""
    fault = replace(FAULTS[kind], at=number)
    with serving(bench.backend.app(bench.folder / "server")) as server, faulty(server.url, fault) as proxy:
        options = bench.backend.options(proxy.url, server.url, bench.folder)
        loaded = load_config(bench.backend.config, overrides=options, registry=bench.registry)
        store = new_run(loaded, bench.folder / "runs")
        error = bench.ended(loaded, store)
        outcome = "through" if any(passed.fault for passed in proxy.seen) else "not hit"
        if error is not None:
            assert SECRET not in error
            outcome, again = "resumed", bench.ended(*continued_run(store.folder, bench.registry))
            assert again is None, f"{kind} at {number}: {error}; resumed: {again}"
    report = json.loads((store.folder / "report.json").read_text())
    assert report["exit_code"] == 0
    assert bench.started == 1, f"{kind} at {number}: {bench.started} jobs"
    assert len(report["backend"]) == 1
    assert all(row["after"]["mean"] is not None for row in report["metrics"].values())
    return outcome


@pytest.mark.parametrize(("bench", "kind"), QUICK, indirect=["bench"])
def test_a_fault_at_the_submission(bench, kind):
    """Of the rehearsal's requests the third is the one that starts the job: health, the search, the job."""
    assert survived(bench(kind), kind, 2) in ("through", "resumed")


def requests_of(bench) -> list[int]:
    """Numbers of a run's requests: of equal ones (polls, several files) the first."""
    with serving(bench.backend.app(bench.folder / "server")) as server, faulty(server.url) as proxy:
        options = bench.backend.options(proxy.url, server.url, bench.folder)
        loaded = load_config(bench.backend.config, overrides=options, registry=bench.registry)
        assert bench.ended(loaded, new_run(loaded, bench.folder / "runs")) is None
    first: dict[str, int] = {}
    for passed in proxy.seen:
        first.setdefault(f"{passed.method} {re.sub(r'[0-9a-f]{8,}', '', passed.path.split('?')[0])}", passed.number)
    print(f"\n{bench.backend.name}: {len(proxy.seen)} requests, {len(first)} different ones")
    return sorted(first.values())


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bench", [backend.name for backend in BACKENDS], indirect=True)
def test_every_fault_at_every_request(bench):
    outcomes: Counter[str] = Counter()
    numbers = requests_of(bench("whole"))
    for kind in FAULTS:
        outcomes.update(f"{kind} {survived(bench(f'{kind}-{number}'), kind, number)}" for number in numbers)
        print({outcome: count for outcome, count in outcomes.items() if outcome.startswith(kind)}, flush=True)
    print(f"{sum(outcomes.values())} runs with a fault", flush=True)
    assert not any(outcome.endswith("not hit") for outcome in outcomes)
