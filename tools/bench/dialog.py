"""What it costs to choose among 16 candidates: against one, and against 16 without their ratings.

A small LaMDA answers one question again and again, in turns. It is barely trained, so candidates
are long and differ: this is about the highest cost.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import lingo
from lingo.decode.chat import Chat, ChatOptions, Responder
from lingo.decode.sampling import Sampling
from lingo.trainer.trained import Trained
from tasks.dialog.ranking import Ranking
from tasks.dialog.turns import Turn
from tools.harness import Cost, Report, at_most, choose

EXPERIMENT = "dialog.lamda.lamda_tiny_finetune(num_steps=2)"
INPUTS = ("generative", "discriminative")
QUESTION = "What is the currency of Japan?"
TOKENS = choose(100, small=8)
ROUNDS = choose(20, small=1)
WANTED = at_most(2.5)


class Ways:
    """Ways to answer one question."""

    def __init__(self, model: Trained) -> None:
        self._model = model
        self._data: Any = model.experiment.train_input.inputs["generative"]

    def answer(self, responder: Responder) -> None:
        """Answers by a responder."""
        options = ChatOptions(max_tokens=TOKENS, tools="off")
        Chat(self._model, responder, options).say(QUESTION)

    def draw(self, number: int) -> None:
        """Draws candidates without ratings."""
        prompt = self._data.dialog_prompt([Turn("user", QUESTION)])
        sampling = Sampling.params(max_tokens=TOKENS, num_samples=number, top_k=40)
        for _ in self._model.stream(prompt, sampling):
            pass


def run(report: Report) -> None:
    """Compares the ways."""
    few = [f"train_input.inputs['{name}'].source.num_dialogs=100" for name in INPUTS]
    overrides = (*few, "eval_inputs={}", "evaluate.prompts=[]")
    with tempfile.TemporaryDirectory() as folder:
        run_folder = Path(folder) / "run"
        lingo.train(lingo.get(EXPERIMENT, *overrides), run_folder)
        ways, chat = Ways(lingo.load(run_folder)), lingo.get(EXPERIMENT).chat
        one, several = (chat.copy().set(ranking=it).build() for it in (None, Ranking.params()))
        calls = {
            "one": lambda: ways.answer(one),
            "16, rated": lambda: ways.answer(several),
            "16, not rated": lambda: ways.draw(several.ranking.p.num_candidates),
        }
        costs: dict[str, list[Cost]] = {name: [] for name in calls}
        for round_number in range(ROUNDS + 1):
            for name, call in calls.items():
                begin, cpu_begin = time.perf_counter(), time.process_time()
                call()
                if round_number:  # the first one compiles
                    seconds = time.perf_counter() - begin
                    costs[name].append(Cost(seconds, time.process_time() - cpu_begin))
    report.table("cost of an answer", "processor")
    report.ratio("16 candidates / one", costs["16, rated"], costs["one"], WANTED)
    report.ratio("16, not rated / one", costs["16, not rated"], costs["one"])
