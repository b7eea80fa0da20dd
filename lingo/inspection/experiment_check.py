"""Checks overrides on many experiments by building each experiment, without allocating weights.

On request it also runs the experiments, to check their layers, tasks and inputs.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from lingo.config import experiment_index, registry
from lingo.config.base.errors import LingoError
from lingo.config.classes import Classes
from lingo.config.overrides import NoMatch, OverrideResult, apply
from lingo.config.params import ParamError, Params
from lingo.config.roots.roots import Roots
from lingo.config.roots.user_line import error_prefix
from lingo.contract import Experiment, build_experiment
from lingo.inspection import weight_table
from lingo.inspection.conformance.claim import Claim, first_line
from lingo.inspection.conformance.contract_check import check_contract
from lingo.inspection.trace import trace
from lingo.layers import path
from lingo.layers.layer import Layer
from lingo.layers.quantization.quantized import Quantized, layer_products
from lingo.layers.wrap.reweighted import is_matrix


class ContractBroken(LingoError):
    """A layer, task or input breaks the contract that all layers, tasks or inputs must keep."""


class CheckResult(NamedTuple):
    """What a check of one experiment found: which overrides match, its weights, its claims."""

    name: str
    num_weights: int | None  # the experiment's number of parameters; None if the check failed
    matches: dict[str, OverrideResult]  # text of an override -> its effect
    mismatches: dict[str, NoMatch]  # text of an override -> why it matched nothing
    error: Exception | None = None
    # Number of parameters without the overrides, if these drop values and reduce the number.
    num_weights_before: int | None = None
    claims: Sequence[Claim] = ()  # about the experiment's layers, task and input, if checked
    params: Params | None = None  # with the overrides; None if the check failed
    products: ProductCount | None = None  # None if no matrix product is quantized

    def __str__(self) -> str:
        if self.num_weights is None:
            return f"FAILED  {self.reason}"
        texts = {**self.matches, **self.mismatches}
        matches = [_describe_match(text, self.matches.get(text)) for text in texts]
        count = f"{self.num_weights:,} parameters"
        if self.num_weights_before is not None:
            before = f"{self.num_weights_before:,}"
            count = f"WARNING  {count}, fewer than the {before} without these flags"
        outcomes = collections.Counter(claim.outcome for claim in self.claims)
        numbers = [f"{number} {outcome}" for outcome, number in outcomes.items()]
        products = [] if self.products is None else [str(self.products)]
        claims = [f"claims: {', '.join(numbers)}"] if numbers else []
        return "  ".join([count, *matches, *products, *claims])

    @property
    def reason(self) -> str:
        """The first line of the error, prefixed by the user's file and line that caused it."""
        return "" if self.error is None else f"{error_prefix(self.error)}{first_line(self.error)}"


def check_experiments(
    overrides: Sequence[str],
    *,
    names: Iterable[str] = (),
    roots: Roots | None = None,
    trace_programs: bool = False,
    contract: bool = False,
    report: Callable[[Claim], None] | None = None,
) -> Iterator[CheckResult]:
    """Yields a result for each experiment as soon as it is checked.

    Args:
        overrides: overrides as `--set` takes them.
        names: names of the experiments; if empty, all experiments are checked.
        roots: where experiments and classes are looked up; None: the default roots.
        trace_programs: whether training and evaluation are traced, too, without allocating weights.
        contract: whether claims about layers, task and input are checked by computing them.
        report: a function that is called with each claim as soon as it is checked.
    """
    classes = Classes(roots)
    for name in names or experiment_index.index(classes.roots).entries:
        result = _check_experiment(name, overrides, classes, trace_programs=trace_programs)
        if contract and result.params is not None:
            result = _check_claims(result, result.params, report)
        yield result


def _check_claims(
    result: CheckResult, params: Params, report: Callable[[Claim], None] | None
) -> CheckResult:
    """Checks the claims about an experiment that builds, and returns the result with them."""
    claims: list[Claim] = []
    try:
        for claim in check_contract(params):
            claims.append(claim)
            if report is not None:
                report(claim)
        failed = [claim for claim in claims if claim.outcome == "FAILED"]
        if failed:
            count = f"{len(failed)} of {len(claims)} claims failed"
            raise ContractBroken(f"{count}; {failed[0].subject}: {failed[0].text}")
    except Exception as error:  # noqa: BLE001  # the other experiments are still to be checked
        return result._replace(num_weights=None, claims=claims, error=error)
    return result._replace(claims=claims)


def check_matches(results: Sequence[CheckResult], overrides: Iterable[str]) -> None:
    """Raises ParamError if an override matches nothing in any of the checked experiments."""
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
        experiment.check_weights()
        num_weights = _count_weights(experiment)
        products = count_products(experiment.task)
        before = None
        if any(match.dropped_values for match in matches.values()):
            before = _count_weights(build_experiment(registry.get(name, arguments, classes.roots)))
        if trace_programs:
            trace(experiment)
    except Exception as error:  # noqa: BLE001  # the other experiments are still to be checked
        return CheckResult(name, None, matches, mismatches, error)
    shrinks = before is not None and num_weights < before
    return CheckResult(
        name,
        num_weights,
        matches,
        mismatches,
        num_weights_before=before if shrinks else None,
        params=resolved.params,
        products=products if products.num_quantized else None,
    )


def _count_weights(experiment: Experiment) -> int:
    return weight_table.total_parameters(weight_table.rows(experiment.task))


def _describe_match(text: str, applied: OverrideResult | None) -> str:
    if applied is None:
        return f"{text}: not applicable"
    dropped = f" (drops {'; '.join(applied.dropped_values)})" if applied.dropped_values else ""
    return f"{text}: {applied.num_matches}{dropped}"


# ---- quantized products --------------------------------------------------------------------------


class ProductCount(NamedTuple):
    """Numbers of matrix products; a product of stacked layers counts once per layer."""

    num_quantized: int
    others: dict[str, int]  # layer class -> the number of its products that are not quantized

    def __str__(self) -> str:
        total = self.num_quantized + sum(self.others.values())
        text = f"{self.num_quantized} of {total} products quantized"
        others = [f"{number} of {name}" for name, number in self.others.items()]
        return f"{text}, not {', '.join(others)}" if others else text


def count_products(model: Layer) -> ProductCount:
    """Counts the quantized and the other matrix products of a model.

    A layer without inner layers that defines `flops` but not `products` counts one product per
    matrix. No wrapper can quantize these products.
    """
    quantized = {
        path.join(wrapper.path, product.path)
        for wrapper in model.tree()
        if isinstance(wrapper, Quantized)
        for product in wrapper.quantized_products
    }
    numbers: collections.Counter[str] = collections.Counter()
    count = 0
    for layer in model.tree():
        for name in _product_names(layer):
            where = path.join(layer.path, name)
            number = math.prod(path.stack_shape(where))
            if where in quantized:
                count += number
            else:
                numbers[type(layer).__name__] += number
    return ProductCount(count, dict(numbers))


def _product_names(layer: Layer) -> list[str]:
    products = [one.product for one in layer_products(layer)]
    names = [product.name for product in products if not product.is_sum]
    is_leaf = sum(1 for _ in layer.tree()) == 1
    if type(layer).products or type(layer).flops is Layer.flops or not is_leaf:
        return names
    return [spec.path for spec in layer.declarations() if spec.decay is None and is_matrix(spec)]
