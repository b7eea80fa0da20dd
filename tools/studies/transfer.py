"""The study of docs/transfer_study.md: what sparse and dense models keep when they are fine-tuned.

Tasks of classification have the share of right answers, tasks of writing the scores of decoded
texts. Every fine-tuning begins with the pretraining of its own seed.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from lingo.trainer.directory.run_directory import RunDirectory
from params.lm.st_moe import PARTS, TASKS
from tools.studies.page import mean_over_seeds, percent_over_seeds, table
from tools.studies.trial import PRETRAINED, Results, Trial
from tools.studies.trial import over_seeds_of_both as over_seeds

PAGE = Path(__file__).parent.parent.parent / "docs" / "transfer_study.md"

NUM_EXPERTS = {"dense": 1, "8 experts": 8}
SPARSE = NUM_EXPERTS["8 experts"]
MEAN = "exact_match@all"
DROPPED = "dropped"


def pretrained(num_experts: int) -> Trial:
    """Returns the trial of a pretraining; 1 expert: the dense model."""
    return Trial(f"lm.st_moe.tiny_pretrain(num_experts={num_experts})")


def tuned(function: str, num_experts: int, *overrides: str, arguments: str = "") -> Trial:
    """Returns the trial of a fine-tuning: `arguments` are more of the experiment's."""
    experiment = f"lm.st_moe.{function}(num_experts={num_experts}{arguments and f', {arguments}'})"
    return Trial(
        experiment, 0, (f"exp.pretrained={PRETRAINED}", *overrides), pretrained(num_experts)
    )


PRETRAIN = {name: pretrained(num) for name, num in NUM_EXPERTS.items()}
CLASSIFY = {name: tuned("tiny_finetune", num) for name, num in NUM_EXPERTS.items()}
KEPT = "keeps_slots=True"
ANEW = ("init_from.slots=false", "optimizer.slot_steps=0")
SLOTS = {
    "AdamW, slots anew": CLASSIFY["8 experts"],
    "Adafactor, slots anew": tuned("tiny_finetune", SPARSE, *ANEW, arguments=KEPT),
    "Adafactor, slots kept": tuned("tiny_finetune", SPARSE, arguments=KEPT),
}
TRAINED = {part: tuned("tiny_finetune", SPARSE, arguments=f"trained={part!r}") for part in PARTS}
CAPACITIES = {
    factor: tuned("tiny_finetune", SPARSE, f"MoE.capacity_factor={factor}")
    for factor in (0.75, 1.25, 2.0)
}
WRITE = {
    (name, task): tuned("tiny_generate", num, arguments=f"task={task!r}")
    for name, num in NUM_EXPERTS.items()
    for task in ("summary", "answer")
}

GROUPS: Mapping[str, Mapping[object, Trial]] = {
    "pretraining": PRETRAIN,
    "sparse and dense": CLASSIFY,
    "slots": SLOTS,
    "parts of the weights": TRAINED,
    "capacities": CAPACITIES,
    "writing": WRITE,
}
"""The trainings of each table; a training may be in several."""


def trials(results: Results) -> Iterator[Trial]:
    """Yields the trainings: first sparse against dense with all seeds, then all else by seed."""
    del results  # none depends on another
    main = [*PRETRAIN.values(), *CLASSIFY.values()]
    others = [trial for group in (SLOTS, TRAINED, CAPACITIES, WRITE) for trial in group.values()]
    for group in (main, others):
        for of_one_seed in zip(*map(over_seeds, group), strict=True):
            yield from of_one_seed


def measure(trial: Trial, run: Path) -> dict[str, float]:
    """Returns the mean share of dropped tokens over the reports of training, if there are experts.

    A token is dropped if no expert computes it.
    """
    del trial
    rows = RunDirectory(run).metrics.read()
    shares = [row["moe/dropped_fraction"] for row in rows if "moe/dropped_fraction" in row]
    return {DROPPED: statistics.fmean(shares)} if shares else {}


# ---- page ----------------------------------------------------------------------------------------


def tables(results: Results) -> dict[str, list[str]]:
    """Returns the tables of the page, by name."""
    tasks = [*TASKS]  # the first has no name in the tags of metrics
    tags = ["exact_match", *(f"exact_match@{task}" for task in tasks[1:]), MEAN]
    return {
        "progress": table(
            ["trainings", "done", "in all"],
            [[name, *_progress(results, group.values())] for name, group in GROUPS.items()],
        ),
        "models": table(
            ["model", "pretraining loss", *(f"{task}, %" for task in tasks), "mean, %"],
            [
                [
                    name,
                    mean_over_seeds(results, over_seeds(PRETRAIN[name]), "loss", digits=3),
                    *_percent(results, trial, tags),
                ]
                for name, trial in CLASSIFY.items()
            ],
        ),
        "slots": table(
            ["optimizer", "mean, %"],
            [[name, *_percent(results, trial, [MEAN])] for name, trial in SLOTS.items()],
        ),
        "parts": table(
            ["weights that change", "mean, %"],
            [[f"`{name}`", *_percent(results, trial, [MEAN])] for name, trial in TRAINED.items()],
        ),
        "capacities": table(
            ["capacity factor", "dropped tokens, %", "mean, %"],
            [
                [str(factor), *_percent(results, trial, [DROPPED, MEAN])]
                for factor, trial in CAPACITIES.items()
            ],
        ),
        "writing": table(
            ["model", "ROUGE-1", "ROUGE-2", "ROUGE-L", "F1, %", "exact match, %"],
            [
                [
                    name,
                    *(
                        mean_over_seeds(results, over_seeds(WRITE[name, "summary"]), tag)
                        for tag in ("rouge1", "rouge2", "rougeL")
                    ),
                    *_percent(results, WRITE[name, "answer"], ["f1", "exact_match"]),
                ]
                for name in NUM_EXPERTS
            ],
        ),
    }


def _percent(results: Results, trial: Trial, tags: Sequence[str]) -> list[str]:
    """Returns a cell for each metric in 0..1."""
    return [percent_over_seeds(results, over_seeds(trial), tag) for tag in tags]


def _progress(results: Results, group: Iterable[Trial]) -> list[str]:
    """Returns how many trainings have a result, and how many there are."""
    wanted = [trial for one in group for trial in over_seeds(one)]
    return [str(sum(results.get(trial) is not None for trial in wanted)), str(len(wanted))]
