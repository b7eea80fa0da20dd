"""Points that Optuna proposes from what earlier trials found, by its tree-structured Parzen
estimator (Bergstra et al. 2011, sec. 4).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lingo.config.params import ParamError
from lingo.study.metric import Goal
from lingo.study.search import Point
from lingo.study.space import Axis, Choices

_NAME = "sweep"


def optuna() -> Any:
    """Returns the package.

    Raises:
        ParamError: if it is not installed.
    """
    try:
        return importlib.import_module("optuna")
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise ParamError(
            "--search=optuna needs Optuna, which is not installed: pip install 'lingo-tf[sweep]'"
        ) from None


class Study:
    """A search that is kept in a file, so that it goes on where it was left.

    A trial that ended without a result stays open there, to be tried again.
    """

    def __init__(
        self, file: Path, axes: Sequence[Axis], *, num_trials: int, seed: int, goal: Goal
    ) -> None:
        """Opens the study, or begins it.

        Args:
            file: Optuna's journal.
            axes: the space.
            num_trials: how many points are tried.
            seed: of the proposals. Each start draws others, or it would propose the same again.
            goal: whether the lowest or the highest value is looked for.
        """
        package = optuna()
        # Its notices about every trial would stand between the lines of the sweep.
        package.logging.set_verbosity(package.logging.WARNING)
        journal = importlib.import_module("optuna.storages.journal")
        storage = package.storages.JournalStorage(journal.JournalFileBackend(str(file)))
        self._study = package.create_study(
            storage=storage,
            study_name=_NAME,
            direction={"min": "minimize", "max": "maximize"}[goal],
            load_if_exists=True,
        )
        self._failed = package.trial.TrialState.FAIL
        self._study.sampler = package.samplers.TPESampler(
            seed=seed + len(self._trials),
            constant_liar=True,  # what is still open counts as bad: the next is tried elsewhere
        )
        self._axes, self._num_trials = {axis.target: axis for axis in axes}, num_trials
        self._distributions = {axis.target: _distribution(axis, package) for axis in axes}

    @property
    def num_trials(self) -> int:
        """How many points are tried, those of earlier starts among them."""
        return self._num_trials

    @property
    def num_known(self) -> int:
        """How many points have been proposed: later ones depend on what these find."""
        return min(len(self._trials), self._num_trials)

    def point(self, number: int) -> Point:
        """Returns the point of a trial; has it proposed, and kept in the journal, if it is new."""
        while number >= len(self._trials):
            self._study.ask(self._distributions)
        found = self._trials[number].params
        return {target: _text(axis, found[target]) for target, axis in self._axes.items()}

    def learn(self, number: int, value: float | None) -> None:
        """Writes what a trial found into the journal; nothing if it has a result there."""
        if self._trials[number].state.is_finished():
            return
        if value is None or not math.isfinite(value):
            self._study.tell(number, state=self._failed)
        else:
            self._study.tell(number, value)

    @property
    def _trials(self) -> list[Any]:
        return self._study.get_trials(deepcopy=False)


def _distribution(axis: Axis, package: Any) -> Any:
    if isinstance(axis, Choices):
        return package.distributions.CategoricalDistribution(axis.values)
    if axis.whole:
        return package.distributions.IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return package.distributions.FloatDistribution(axis.low, axis.high, log=axis.log)


def _text(axis: Axis, value: Any) -> str:
    return value if isinstance(axis, Choices) else axis.text(value)
