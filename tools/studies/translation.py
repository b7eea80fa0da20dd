"""The study of docs/translation_study.md: do experts help to translate from 12 languages?

Scores are of English strings that training has in no language. A score of a third is the mean over
its languages.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib import pyplot

import lingo
from lingo.data.pairs.pair_input import PairInput
from lingo.data.prompt import TextPair
from lingo.metrics.text import text_scores
from params.mt.catalogs import LANGUAGES
from tools.studies.page import NONE, spread, table
from tools.studies.trial import Results, Trial, over_seeds

PAGE = Path(__file__).parent.parent.parent / "docs" / "translation_study.md"

MODELS = {
    "dense": Trial("mt.catalogs.dense"),
    "8 experts": Trial("mt.catalogs.moe_8"),
    "32 experts": Trial("mt.catalogs.moe_32"),
}
BILINGUAL = {one: Trial(f"mt.catalogs.dense(only={one!r})") for one in ("it", "oc", "co", "sc")}
"""Models of one language: one of each third, and the smallest."""

BATCHES = {
    size: Trial(f"mt.catalogs.dense(batch_size={size}, num_steps={32 * 6000 // size})")
    for size in (8, 32, 128)
}
"""Batch sizes, for as many rows in all."""

NUM_PAIRS = 100  # of each language, that are translated
MAX_TOKENS = 64


def trials(results: Results) -> Iterator[Trial]:
    """Yields the trainings, the first seed of each model first."""
    del results  # none depends on another
    seeds = [over_seeds(trial) for trial in MODELS.values()]
    for of_one_seed in zip(*seeds, strict=True):
        yield from of_one_seed
    yield from BILINGUAL.values()
    yield from BATCHES.values()


def measure(trial: Trial, run: Path) -> dict[str, float]:
    """Returns BLEU and chrF of translations, as "de/chrf", and of copies of the sources.

    "de/unequal/chrf" leaves out pairs whose text is its own translation, "de/copy/chrf" is the
    source, taken for its translation.
    """
    del trial
    model, found = lingo.load(run), dict[str, float]()
    for language, data in model.experiment.eval_inputs.items():
        if isinstance(data, PairInput):
            data.prepare()
            pairs = data.text_pairs(NUM_PAIRS)
            sources = [pair.source for pair in pairs]
            english = model.generate(sources, max_tokens=MAX_TOKENS, temperature=0.0)
            for way, texts in (("", english), ("/copy", sources)):
                found |= score_pairs(f"{language}{way}", pairs, texts)
    return found


def score_pairs(name: str, pairs: Sequence[TextPair], texts: Sequence[str]) -> dict[str, float]:
    """Returns the scores of texts for all pairs, and for those with unequal sides."""
    kept = [i for i, pair in enumerate(pairs) if pair.source != pair.target]
    found: dict[str, float] = {}
    for way, numbers in (("", range(len(pairs))), ("/unequal", kept)):
        answers, targets = [texts[i] for i in numbers], [pairs[i].target for i in numbers]
        scores = text_scores(answers, targets, ("bleu", "chrf"))
        found |= {f"{name}{way}/{measure}": score for measure, score in scores.items()}
    return found


# ---- page ----------------------------------------------------------------------------------------


def tables(results: Results) -> dict[str, list[str]]:
    """Returns the tables of the page, by name."""
    thirds = [f"{third}, {name}" for third in LANGUAGES for name in ("BLEU", "chrF")]
    rows = [
        [name, *_thirds(results, over_seeds(trial), ""), _hours(results, over_seeds(trial))]
        for name, trial in MODELS.items()
    ]
    copies = ["copy of the source", *_thirds(results, over_seeds(MODELS["dense"]), "/copy"), NONE]
    return {
        "thirds": table(["model", *thirds, "hours"], [*rows, copies]),
        "unequal": table(
            ["model", *thirds],
            [
                [name, *_thirds(results, over_seeds(trial), "/unequal")]
                for name, trial in MODELS.items()
            ],
        ),
        "bilingual": table(
            ["language", "12 languages", "alone"],
            [
                [f"`{language}`", *(_cell(results, one, f"{language}/chrf") for one in both)]
                for language, both in (
                    (name, (MODELS["dense"], trial)) for name, trial in BILINGUAL.items()
                )
            ],
        ),
        "batches": table(
            ["rows in a batch", *thirds],
            [[str(size), *_thirds(results, [trial], "")] for size, trial in BATCHES.items()],
        ),
    }


def _thirds(results: Results, trials: Sequence[Trial], way: str) -> list[str]:
    """Returns a cell for each third and measure: the mean over seeds that have a result."""
    return [
        spread(
            [
                value
                for trial in trials
                if (value := _third(results, trial, languages, f"{way}/{measure}")) is not None
            ],
            len(trials),
        )
        for languages in LANGUAGES.values()
        for measure in ("bleu", "chrf")
    ]


def _third(results: Results, trial: Trial, languages: Sequence[str], tag: str) -> float | None:
    values = [results.metric(trial, f"{language}{tag}") for language in languages]
    found = [value for value in values if value is not None]
    return statistics.fmean(found) if len(found) == len(values) else None


def _cell(results: Results, trial: Trial, tag: str) -> str:
    value = results.metric(trial, tag)
    return spread([] if value is None else [value], 1)


def _hours(results: Results, trials: Sequence[Trial]) -> str:
    found = [result.seconds / 3600 for trial in trials if (result := results.get(trial))]
    return spread(found, len(trials))


def draw(results: Results, folder: Path) -> None:
    """Draws chrF of every language for each model that has a result, largest language first."""
    figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
    languages = [language for third in LANGUAGES.values() for language in third]
    for name, trial in MODELS.items():
        values = [results.metric(trial, f"{language}/chrf") for language in languages]
        found = [value for value in values if value is not None]
        if len(found) == len(values):
            axes.plot(languages, found, marker="o", label=name)
    axes.set(xlabel="language, by third", ylabel="chrF of held-out strings")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(frameon=False)
    figure.savefig(folder / "translation_languages.png", dpi=120)
    pyplot.close(figure)
