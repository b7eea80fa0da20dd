"""The study of docs/dialog_study.md: what a small LaMDA learns from dialogs by templates.

A run's ratings are compared with the planted ones; what it answers is judged by the rules that
planted them. Questions are about held-out facts, or in held-out sentences.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import lingo
from lingo.decode.chat import Chat, ChatOptions
from lingo.metrics.metric import Accumulator
from lingo.trainer.trained import Trained
from tasks.dialog.facts import FUNCTIONS, all_facts
from tasks.dialog.judge import Judge, Verdict
from tasks.dialog.ranking import Ranking, filter_dialogs, rate
from tasks.dialog.ratings import states
from tasks.dialog.templates import TemplateDialogs
from tasks.dialog.turns import ATTRIBUTES, Attribute, Response, to_json
from tools.studies.page import NONE, percent_over_seeds, table
from tools.studies.trial import PRETRAINED, SEEDS, Results, Trial

PAGE = Path(__file__).parent.parent.parent / "docs" / "dialog_study.md"

SPLITS = {"heldout_facts": "held-out facts", "heldout_templates": "held-out sentences"}
# No digest has these numbers: if one changes, delete the lines of docs/results/dialog.jsonl.
SEED = 1  # of the dialogs that are measured: evaluations while training have 0
NUM_RATED_DIALOGS, NUM_BAG_DIALOGS, NUM_FILTERED_DIALOGS = 300, 10_000, 8_000
NUM_QUESTIONS, MAX_TOKENS = 60, 80
MIN_QUALITY = 2.0
FILTERED = "filtered.jsonl"

FINETUNE = "dialog.lamda.lamda_tiny_finetune"
WITHOUT_TOOLS = f"{FINETUNE}(has_tools=False)"
CONTINUED = f"{FINETUNE}(has_tools=False,num_steps=1000)"

METRICS = {
    "sensibleness": "sensible",
    "specificity": "specific",
    "interestingness": "interesting",
    "safety": "safe",
    "groundedness": "grounded",
    "informativeness": "informative",
}
COMPARED = ("sensibleness", "specificity", "safety", "groundedness")  # of candidates


class Models(NamedTuple):
    """The trials of one seed."""

    pretrained: Trial
    without_tools: Trial  # fine-tuned to respond and to rate
    with_tools: Trial  # and to ask tools
    unfiltered: Trial  # `without_tools`, and more of the same
    filtered: Trial  # `without_tools`, and more of those dialogs that it finds good itself


def models(seed: int) -> Models:
    """Returns the trials of a seed."""
    start = (f"exp.pretrained={PRETRAINED}",)
    few = f"train_input.inputs['generative'].source.num_dialogs={NUM_FILTERED_DIALOGS}"
    data = f"train_input.inputs['generative'].source=DialogFiles(pattern={PRETRAINED}/{FILTERED})"
    pretrained = Trial("dialog.lamda.lamda_tiny", seed)
    without_tools = Trial(WITHOUT_TOOLS, seed, start, pretrained)
    with_tools = Trial(FINETUNE, seed, start, pretrained)
    return Models(
        pretrained,
        without_tools,
        with_tools,
        Trial(CONTINUED, seed, (*start, few), without_tools),
        Trial(CONTINUED, seed, (*start, data), without_tools),
    )


def trials(results: Results) -> Iterator[Trial]:
    """Yields the trials, seed by seed."""
    del results  # none decides which trials there are
    for one in _seeds():
        yield from one


def _seeds() -> list[Models]:
    return [models(seed) for seed in SEEDS]


# ---- measurements


def measure(trial: Trial, run: Path) -> dict[str, float]:
    """Returns what a run's ratings and answers are worth, by `split/way/metric`."""
    model, of_seed, found = lingo.load(run), models(trial.seed), dict[str, float]()
    ways: dict[str, Any] = (
        {} if trial in (of_seed.unfiltered, of_seed.filtered) else {"first": None}
    )
    ways |= {} if trial == of_seed.pretrained else {"ranked": Ranking.params()}
    for split in SPLITS:
        if trial in (of_seed.without_tools, of_seed.with_tools):
            found |= _with_prefix(f"{split}/auc", _areas(model, split))
        if trial == of_seed.without_tools:
            found |= _with_prefix(f"{split}/bag", _bag_areas(split))
        for way, ranking in ways.items():
            chosen, *of_candidates = _answers(model, split, ranking)
            found |= _with_prefix(f"{split}/{way}", chosen)
            for name, values in zip(("random", "often"), of_candidates, strict=True):
                found |= _with_prefix(f"{split}/{name}", values)
    if trial == of_seed.without_tools:
        _filter(model, run / FILTERED)
    return found


def _with_prefix(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in values.items()}


def _responses(split: str, *, num_dialogs: int) -> list[Response]:
    """Returns rated responses."""
    source = TemplateDialogs.params(split=split, num_dialogs=num_dialogs, seed=SEED).build()
    responses = [response for dialog in source.dialogs() for response in dialog.responses()]
    return [response for response in responses if response.turn.ratings]


def _areas(model: Trained, split: str) -> dict[str, float]:
    """Returns the area under the ROC curve of a model's ratings, by attribute."""
    responses = _responses(split, num_dialogs=NUM_RATED_DIALOGS)
    rated = zip(responses, rate(model, responses), strict=True)
    kept = [(one.turn.ratings, ratings) for one, ratings in rated if ratings is not None]
    found: dict[str, float] = {}
    for name in ATTRIBUTES:
        wanted, given = zip(*((one[name], other[name]) for one, other in kept), strict=True)
        found[name] = float(roc_auc_score(wanted, given))
    return found


def _bag_areas(split: str) -> dict[str, float]:
    """Returns the areas of logistic regression on words and pairs of words."""
    vectorizer, classifiers = _bag()
    responses = _responses(split, num_dialogs=NUM_RATED_DIALOGS)
    features, found = vectorizer.transform(map(_words, responses)), {}
    for name, classifier in classifiers.items():
        wanted = [response.turn.ratings[name] for response in responses]
        found[name] = float(roc_auc_score(wanted, classifier.decision_function(features)))
    return found


@functools.cache
def _bag() -> tuple[CountVectorizer, dict[Attribute, LogisticRegression]]:
    """Returns what counts words, and a classifier for each attribute."""
    responses = _responses("train", num_dialogs=NUM_BAG_DIALOGS)
    vectorizer = CountVectorizer(binary=True, ngram_range=(1, 2), min_df=2)
    features = vectorizer.fit_transform(map(_words, responses))
    return vectorizer, {
        name: LogisticRegression(max_iter=300).fit(
            features, [response.turn.ratings[name] for response in responses]
        )
        for name in ATTRIBUTES
    }


def _words(response: Response) -> str:
    """Returns the words of the context, each after `context_`, then the words of the response."""
    context = " ".join(turn.text for turn in response.context)
    return " ".join([*(f"context_{word}" for word in context.split()), response.turn.text])


def _answers(model: Trained, split: str, ranking: Any) -> list[dict[str, float]]:
    """Returns the metrics of answers, of random candidates, and of those that are drawn most often.

    Without ranking, the last two are empty.
    """
    source = TemplateDialogs.params(split=split, num_dialogs=NUM_QUESTIONS, seed=SEED).build()
    chosen, candidates, often = Accumulator(), Accumulator(), Accumulator()
    responder = lingo.get(FINETUNE).chat.set(ranking=ranking).build()
    drawn = Ranking.params()  # one answer is drawn as candidates are
    options = ChatOptions(max_tokens=MAX_TOKENS, temperature=drawn.temperature, top_k=drawn.top_k)
    for asked in source.questions():
        chat = Chat(model, responder, options)
        chosen.add(_states(_judge()(asked, chat.say(asked.text)), 1))
        rows = chat.reply.details.get("candidates", []) if chat.reply else []
        for row in rows:
            candidates.add(_states(_judge()(asked, row["text"]), row["drawn"]))
        if rows:
            most = max(rows, key=lambda row: row["drawn"])
            often.add(_states(_judge()(asked, most["text"]), 1))
    return [_means(one) for one in (chosen, candidates, often)]


def _states(verdict: Verdict, times: int) -> dict[str, dict[str, Any]]:
    return {
        name: {key: times * value for key, value in state.items()}
        for name, state in states(verdict.human_ratings()).items()
    }


def _means(sums: Accumulator) -> dict[str, float]:
    return {
        name: float(state["sum"] / state["weight"])
        for name, state in sums.states.items()
        if state["weight"]
    }


@functools.cache
def _judge() -> Judge:
    return Judge(all_facts(FUNCTIONS.build()))


def _filter(model: Trained, path: Path) -> None:
    """Writes the dialogs that a model finds good, of the first ones that it was trained on."""
    source = TemplateDialogs.params(num_dialogs=NUM_FILTERED_DIALOGS).build()
    ranking = Ranking.params().build()
    kept = filter_dialogs(model, source.dialogs(), ranking, min_quality=MIN_QUALITY)
    path.write_text("".join(f"{to_json(dialog)}\n" for dialog in kept))


# ---- page


def tables(results: Results) -> dict[str, list[str]]:
    """Returns the tables of the page, by name."""
    return {
        "ratings": _ratings_table(results),
        "answers": _answers_table(results),
        "choices": _choices_table(results),
        "filtered": _filtered_table(results),
    }


def _ratings_table(results: Results) -> list[str]:
    seeds = _seeds()
    rows = [
        [
            name,
            text,
            _area(results, [one.without_tools for one in seeds], f"{split}/auc/{name}"),
            _area(results, [one.with_tools for one in seeds], f"{split}/auc/{name}"),
            _area(results, [one.without_tools for one in seeds], f"{split}/bag/{name}"),
        ]
        for split, text in SPLITS.items()
        for name in ATTRIBUTES
    ]
    return table(["attribute", "dialogs", "fine-tuned", "with tools", "bag of words"], rows)


def _area(results: Results, trials: Sequence[Trial], tag: str) -> str:
    values = [value for trial in trials if (value := results.metric(trial, tag)) is not None]
    if not values:
        return NONE
    text = f"{statistics.fmean(values):.3f}"
    return f"{text} ({min(values):.3f} to {max(values):.3f})" if len(set(values)) > 1 else text


def _answers_table(results: Results) -> list[str]:
    seeds = _seeds()
    rows: Mapping[str, tuple[list[Trial], str]] = {
        "pre-trained": ([one.pretrained for one in seeds], "first"),
        "fine-tuned": ([one.without_tools for one in seeds], "ranked"),
        "fine-tuned, with tools": ([one.with_tools for one in seeds], "ranked"),
    }
    return table(
        ["model", "questions", *METRICS.values()],
        [
            [name, text, *(_cells(results, trials, f"{split}/{way}"))]
            for split, text in SPLITS.items()
            for name, (trials, way) in rows.items()
        ],
    )


def _choices_table(results: Results) -> list[str]:
    seeds = _seeds()
    models = {
        "fine-tuned": [one.without_tools for one in seeds],
        "with tools": [one.with_tools for one in seeds],
    }
    ways = {
        "first": "first",
        "random": "random",
        "often": "drawn most often",
        "ranked": "best by its own ratings",
    }
    return table(
        ["model", "candidate", "questions", *(METRICS[name] for name in COMPARED)],
        [
            [model, name, text, *_cells(results, trials, f"{split}/{way}", COMPARED)]
            for model, trials in models.items()
            for split, text in SPLITS.items()
            for way, name in ways.items()
        ],
    )


def _filtered_table(results: Results) -> list[str]:
    seeds = _seeds()
    rows = {
        "all": [one.unfiltered for one in seeds],
        "those that it finds good": [one.filtered for one in seeds],
    }
    return table(
        ["dialogs", "questions", *METRICS.values()],
        [
            [name, text, *_cells(results, trials, f"{split}/random")]
            for split, text in SPLITS.items()
            for name, trials in rows.items()
        ],
    )


def _cells(
    results: Results, trials: Sequence[Trial], prefix: str, metrics: Iterable[str] = METRICS
) -> list[str]:
    return [percent_over_seeds(results, trials, f"{prefix}/{metric}") for metric in metrics]
