"""A small GNMT learns a language of digits, and decodes it by a search with coverage."""

from __future__ import annotations

import json
import pathlib

import lingo
from lingo.config.params import Params
from lingo.data import ByteTokenizer, PairInput, TsvPairs
from lingo.layers import Embedding, FanIn, Lstm, SoftmaxHead
from lingo.runtimes.local import Local
from params.mlperf.gnmt import gnmt
from tasks.mt.gnmt import AdditiveAttention

WORDS = ["nul", "een", "twee", "drie"]


def experiment(path: pathlib.Path, *, max_steps: int) -> Params:
    """Returns `mlperf.gnmt.reference` with a small model and numbers of two digits."""
    pairs = [(f"{a}{b}", f"{WORDS[a]} {WORDS[b]}") for a in range(4) for b in range(4)]
    table = path / "numbers.tsv"
    table.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    cfg = lingo.get("mlperf.gnmt.reference").set(max_steps=max_steps, runtime=Local, observers=[])
    data = PairInput.params(
        source=TsvPairs.params(pattern=str(table)),
        tokenizer=ByteTokenizer,
        batch_size=16,
        source_length=4,
        target_length=12,
        packing="none",
    )
    model = gnmt(dim=32, num_layers=3, dropout_rate=0.0)
    for cls in (Lstm, AdditiveAttention, Embedding, SoftmaxHead):
        model.all(cls).set(init=FanIn)  # 0.1 is for a width of 1024
    cfg.task.set(model=model, vocab_size=259, label_smoothing=0.0, dtype="float32")
    cfg.train_input, cfg.eval_inputs = data, {"heldout": data.copy().set(repeat=False)}
    cfg.optimizer.set(learning_rate=0.01)
    cfg.optimizer.schedule.num_steps = 5
    cfg.evaluate.set(every_steps=max_steps, metric=None, reach=None)
    cfg.evaluate.answers.decoding.max_tokens = 12
    cfg.evaluate.answers.measures = ["exact_match"]
    cfg.summary.every_steps = 10
    return cfg


def test_a_small_gnmt_learns_to_write_numbers(tmp_path: pathlib.Path) -> None:
    outcome = lingo.train(experiment(tmp_path, max_steps=100), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    losses = [row["loss/total"] for row in rows]
    assert losses[-1] < losses[0] / 10
    assert outcome.evaluations["heldout"]["eval/exact_match"] == 1.0
