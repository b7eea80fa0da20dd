"""Checks overrides on many experiments: it builds each one, without memory for its weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from lingo.config import experiment_index, registry
from lingo.config.overrides.apply import NoMatch, OverrideResult, apply
from lingo.config.params import ParamError
from lingo.config.roots.classes import Classes
from lingo.config.roots.roots import Roots
from lingo.config.roots.user_line import origin
from lingo.contract import build_experiment
from lingo.inspection import weight_table
from lingo.inspection.trace import trace


class CheckResult(NamedTuple):
    """How the check of one experiment ended."""

    name: str
    num_weights: int | None  # the number of its parameters; None if the check failed
    matches: dict[str, OverrideResult]  # what each override did, by the override's text
    mismatches: dict[str, NoMatch]  # why an override matched nothing, by the override's text
    error: Exception | None = None

    def __str__(self) -> str:
        if self.num_weights is None:
            return f"FAILED  {self.reason}"
        texts = {**self.matches, **self.mismatches}
        matches = [_describe_match(text, self.matches.get(text)) for text in texts]
        return "  ".join([f"{self.num_weights:,} parameters", *matches])

    @property
    def reason(self) -> str:
        """The first line of the error, as TensorFlow's errors may be pages long, and its origin."""
        if self.error is None:
            return ""
        first = (str(self.error).strip() or "no message").splitlines()[0]
        kind = "" if isinstance(self.error, ParamError) else f"{type(self.error).__name__}: "
        return f"{origin(self.error)}{kind}{first}"


def check_experiments(
    overrides: Sequence[str],
    *,
    names: Iterable[str] = (),
    roots: Roots | None = None,
    trace_programs: bool = False,
) -> Iterator[CheckResult]:
    """Yields a result for each experiment as soon as it is checked; without `names` for all.

    `trace_programs` traces training and evaluation, too, which allocates no weights.
    """
    classes = Classes(roots)
    for name in names or experiment_index.index(classes.roots).entries:
        yield _check_experiment(name, overrides, classes, trace_programs=trace_programs)


def check_matches(results: Sequence[CheckResult], overrides: Iterable[str]) -> None:
    """Raises ParamError for the first override that matches nothing in any experiment."""
    for text in overrides:
        if results and all(text in result.mismatches for result in results):
            reason = results[0].mismatches[text]
            raise ParamError(f"--set={text} matches in no experiment. {reason}")


def _check_experiment(
    name: str, texts: Sequence[str], classes: Classes, *, trace_programs: bool
) -> CheckResult:
    matches: dict[str, OverrideResult] = {}
    mismatches: dict[str, NoMatch] = {}
    try:
        arguments = [text for text in texts if text.startswith(registry.ARGUMENT)]
        resolved = registry.get(name, arguments, classes.roots)
        for text in texts:
            if text not in arguments:
                try:
                    (matches[text],) = apply(resolved.params, [text], classes)
                except NoMatch as error:
                    mismatches[text] = error
        experiment = build_experiment(resolved)
        num_weights = weight_table.total_parameters(weight_table.rows(experiment.task))
        if trace_programs:
            trace(experiment)
    except Exception as error:  # noqa: BLE001  # the others are still to be checked
        return CheckResult(name, None, matches, mismatches, error)
    return CheckResult(name, num_weights, matches, mismatches)


def _describe_match(text: str, applied: OverrideResult | None) -> str:
    if applied is None:
        return f"{text}: not applicable"
    dropped = f" (drops {'; '.join(applied.dropped_values)})" if applied.dropped_values else ""
    return f"{text}: {applied.num_matches}{dropped}"
