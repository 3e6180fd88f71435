"""The real prefix-cache manager as the judge of the engine: same reused tokens, same victims, same causes."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from types import ModuleType

import pytest

import slotgrid as sg
from slotgrid.stacks.rbln import releases
from tests.stacks import wheels
from tests.stacks.real_manager import judge

PLANS_PER_CONFIG = 48
# slots 4 to 16; blocks above, at and below the batch size
CONFIGS = (
    sg.ServingConfig((1, 2, 4)),
    sg.ServingConfig((1, 4, 6)),
    sg.ServingConfig((1, 2, 4, 8)),
    sg.ServingConfig((1, 4, 8), slots=9),
    sg.ServingConfig((1, 4, 8), slots=16),
    sg.ServingConfig((1, 4, 8), slots=6),
    sg.ServingConfig((1, 8, 12), slots=12),
)


@pytest.fixture(scope="module")
def manager() -> Iterator[ModuleType]:
    with wheels.imported("0.11.1"):
        yield wheels.load("vllm_rbln.v1.core.prefix_cache_manager")


def random_plan(rng: random.Random, clients: int, longest_first_prompt: int = 1600) -> sg.InputPlan:
    """Five turns a session, some clients with a second session, some waits zero, short answers."""

    def session(name: str) -> sg.Session:
        turns = []
        for turn in range(5):
            new = rng.randint(100, longest_first_prompt) if turn == 0 else rng.choice((1, 8, 128, rng.randint(1, 300)))
            wait_s = 0.0 if turn == 4 else rng.choice((0.0, 0.0, rng.expovariate(2.0)))
            turns.append(sg.Turn(new, rng.choice((1, 2, rng.randint(3, 40))), wait_s))
        return sg.Session(name, tuple(turns))

    return sg.InputPlan(
        "random",
        tuple(
            sg.Client(rng.choice((0.0, rng.random())), tuple(session(f"{c}.{s}") for s in range(rng.randint(1, 2))))
            for c in range(clients)
        ),
    )


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label)
def test_same_reuse_and_same_victims(manager: ModuleType, config: sg.ServingConfig) -> None:
    profile = sg.load_profile("rbln-ca25-qwen3-4b")
    rng = random.Random(config.label)
    evictions = {"admission": 0, "padding": 0}
    lost = 0
    for _ in range(PLANS_PER_CONFIG):
        plan = random_plan(rng, clients=rng.randint(2, config.slots + 4))
        run = sg.simulate(profile, config, plan, rules="real")
        judge(manager, plan, run, profile.kv.slot_tokens)
        for cause in evictions:
            evictions[cause] += run.evicted(cause)
        lost += run.returns - run.reused
    # the plans must reach what they are meant to compare
    assert evictions["admission"] > 0
    assert (evictions["padding"] > 0) == (config.slots >= config.max_running)
    assert lost > 0


@pytest.mark.parametrize("release", sorted(releases.FILES))
def test_the_files_are_the_known_ones(release: str) -> None:
    root = wheels.site_packages(release)
    for path, expected in releases.FILES[release].items():
        assert hashlib.sha256((root / path).read_bytes()).hexdigest() == expected, f"{release}: {path} has changed"
        assert release in releases.releases_of(path, expected)
