"""Which requests go together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from nat_finetune.local.admission import QUIET_TURNS, Admission


@dataclass
class Asked:
    order_key: str
    cancelled: bool = False


@pytest.fixture
def released():
    return []


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def keys(batches: list[list[Asked]]) -> list[list[str]]:
    return [[request.order_key for request in batch] for batch in batches]


async def test_at_once_means_with_all_of_the_same_turn(released):
    admission = Admission(released.append, deterministic=False)
    admission.submit(Asked("b"))
    admission.submit(Asked("a"))
    assert released == []
    await turns(2)
    admission.submit(Asked("c"))
    await turns(2)
    assert keys(released) == [["b", "a"], ["c"]]


async def test_lockstep_waits_for_every_rollout_and_sorts(released):
    admission = Admission(released.append, deterministic=True)
    for key in "cab":
        admission.rollout_started(key)
    for key in "ca":
        admission.submit(Asked(key))
    await turns(5 * QUIET_TURNS)
    assert released == []
    admission.submit(Asked("b"))
    await turns(2 * QUIET_TURNS)
    assert keys(released) == [["a", "b", "c"]]


@pytest.mark.parametrize("late", [1, 3, 6])
async def test_lockstep_gives_a_rollout_some_turns_to_ask_for_more(released, late):
    admission = Admission(released.append, deterministic=True)
    admission.rollout_started("a")
    admission.submit(Asked("a"))
    await turns(late)
    admission.submit(Asked("a"))
    await turns(3 * QUIET_TURNS)
    assert keys(released) == [["a", "a"]]


async def test_a_rollout_that_starts_meanwhile_is_waited_for(released):
    admission = Admission(released.append, deterministic=True)
    admission.rollout_started("a")
    admission.submit(Asked("a"))
    await turns(2)
    admission.rollout_started("b")
    await turns(3 * QUIET_TURNS)
    assert released == []
    admission.rollout_ended("b")
    await turns(2 * QUIET_TURNS)
    assert keys(released) == [["a"]]


async def test_a_rollout_that_runs_twice_ends_twice(released):
    admission = Admission(released.append, deterministic=True)
    for _ in range(2):
        admission.rollout_started("a")
    admission.rollout_ended("a")
    admission.submit(Asked("b"))
    await turns(3 * QUIET_TURNS)
    assert released == [], "a runs still"
    admission.rollout_ended("a")
    await turns(2 * QUIET_TURNS)
    assert keys(released) == [["b"]]


async def test_lockstep_forgets_what_nobody_waits_for(released):
    admission = Admission(released.append, deterministic=True)
    gone = Asked("a")
    admission.submit(gone)
    admission.submit(Asked("b"))
    gone.cancelled = True
    await turns(2 * QUIET_TURNS)
    assert keys(released) == [["b"]]
