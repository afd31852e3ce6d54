"""Make a policy in many worlds; a rule skips where an earlier rule already fails."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import ClassVar

import pytest
from hypothesis import given, settings

from bytelane import plugins
from bytelane.cluster import Sync
from bytelane.core import Knob, Knobs, Policy, choose_knobs, make_policy, policy_entry
from bytelane.core.policy import Entry
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.sim import Simulation, simulate
from bytelane.testing import sound
from bytelane.testing.contract import require
from bytelane.testing.worlds import World, odd_worlds, some_values, wide_job, worlds


class _KnobsRefused(Exception):
    """The policy refuses these knobs, as it may."""


class Trial:
    """Helpers that the rules of a policy share."""

    policy: str
    """The name under which it is registered."""
    examples: ClassVar[int] = 25
    """How many random worlds each rule is tried in, after the odd ones."""

    @property
    def _entry(self) -> Entry:
        plugins.look_for(self.policy)
        return policy_entry(self.policy)

    @property
    def _ways(self) -> tuple[Sync, ...]:
        return self._entry.sync

    def _knobs(self, world: World) -> Knobs:
        return choose_knobs(self.policy) if world.knobs is None else world.knobs

    def _make(self, world: World) -> Policy:
        return make_policy(self.policy, world.job, world.cluster, world.knobs)

    def _made(self, world: World, *looks: sound.Look) -> Policy:
        """Make the policy; skip if that fails, or if one of these checks finds a mistake."""
        try:
            policy = self._make(world)
        except Exception as error:
            if isinstance(error, InputError) and world.knobs is not None:
                raise _KnobsRefused from None
            pytest.skip("it cannot be made for every job; see the rule about that")
        for look in looks:
            wrong = look(policy, self.policy, world.job, world.cluster)
            if wrong is not None:
                pytest.skip(f"fix this first: {wrong}")
        return policy

    def _sound(self, world: World) -> Policy:
        return self._made(world, *sound.IN_ORDER)

    def _made_with_values(self, world: World, knob: Knob) -> Iterator[Policy]:
        """Make it with every value of a knob that it does not refuse."""
        for value in some_values(knob):
            knobs = Knobs.of(self._knobs(world).values | {knob.key: value})
            with suppress(InputError):
                yield self._make(world._replace(knobs=knobs))

    def _simulate(self, world: World) -> Simulation:
        return simulate(world.job, world.cluster, self._sound(world), "interpreted")

    def _usual_worlds(self, job: Job) -> list[World]:
        """Put a job on a usual cluster of each kind that the policy is for."""
        return [World(job, next(odd_worlds(self.policy, sync)).cluster) for sync in self._ways]

    def _wide_worlds(self) -> list[World]:
        return self._usual_worlds(wide_job())

    def _everywhere(self, check: Callable[[World], None], *ways: Sync, exact: bool = True) -> None:
        """Try a check in the odd worlds, then in random ones."""
        ways = ways or self._ways
        if not ways:
            pytest.skip("it registers for no way of synchronising")

        def try_in(world: World) -> None:
            with suppress(_KnobsRefused):
                check(world)

        for world in odd_worlds(self.policy, *ways):
            try_in(world)
        randomly = given(world=worlds(self.policy, *ways, exact=exact))
        settings(max_examples=self.examples, deadline=None)(randomly(try_in))()

    def _everywhere_passes(self, look: sound.Look) -> None:
        """Try a check of the policy's data, after those that it relies on."""
        looks_before = sound.IN_ORDER[: sound.IN_ORDER.index(look)]

        def check(world: World) -> None:
            policy = self._made(world, *looks_before)
            wrong = look(policy, self.policy, world.job, world.cluster)
            require(wrong is None, f"{wrong}, for {world}")

        self._everywhere(check)
