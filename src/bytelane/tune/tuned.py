"""Online tuning: a planner that lets any tuner choose settings while a model is trained."""

from bytelane.cluster import Cluster
from bytelane.core import Context, Observation, Plan, Planner, Setting, Trial, Tuner, Wish
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.sim.planner import PolicyPlanner

# A tuner that asks for this many settings in a row that cannot be planned will not find one.
MOST_FAILURES = 20


class TunedPlanner(Planner):
    """Plans as a tuner asks, and tells it how long iterations take under each setting."""

    def __init__(self, tuner: Tuner, name: str = "tuned", *, needs_network: bool = True) -> None:
        self.name = name
        self.needs_network = needs_network
        self.setting: Setting | None = None
        """The setting of the plan in force."""
        self._tuner = tuner
        self._context: Context | None = None

    def plan(self, job: Job, cluster: Cluster | None = None, version: int = 1) -> Plan:
        context = Context(job, cluster)
        if context != self._context:
            self._context = context
            self._tuner.begin(context)
        for attempt in range(MOST_FAILURES):
            setting = self._tuner.ask()
            try:
                plan = PolicyPlanner(setting).plan(job, cluster, version)
            except InputError as error:
                self._tuner.tell(Trial(setting, failure=str(error), context=context))
                if attempt == MOST_FAILURES - 1:
                    raise
            else:
                break
        self.setting = setting
        return plan

    def observe(self, seen: Observation) -> Wish:
        """Tell the tuner the measured time; plan again if it asks for another setting."""
        if self.setting is None or seen.iteration_s is None:
            return Wish.NOTHING
        self._tuner.tell(Trial(self.setting, seen.iteration_s, context=self._context))
        return Wish.NOTHING if self._tuner.ask() == self.setting else Wish.PLAN

    def summarise(self, seen: Observation, replaced_by: str | None = None) -> str:
        return "" if self.setting is None else f"{self.name}: last setting {self.setting}"
