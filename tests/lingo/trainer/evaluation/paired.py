"""A small model of pairs, whose answers, decoded on several devices, are printed as JSON.

A process of its own, because TensorFlow and JAX choose their devices once a process.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

from lingo.config.params import Params
from lingo.contract import Answers, Evaluation, Experiment
from lingo.data.pairs.pair_input import PairInput
from lingo.data.sources.pair_files import TsvPairs
from lingo.decode.beam import Beam
from lingo.decode.sampling import Sampling
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.cross_attention import CrossAttention
from lingo.learner.state import initial_state
from lingo.optim.adam import Adam
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.program import Program
from lingo.runtimes.replicated.replicated import Replicated
from lingo.trainer.evaluation.answers import decode_answers, score_answers
from tasks.seq2seq.model import EncoderDecoder
from tasks.seq2seq.task import SequenceToSequence

PAIRS = [("one", "eins a"), ("two", "zwei b"), ("three", "drei c"), ("four", "vier d")] + [
    (f"the number {i}", f"die Zahl {i}") for i in range(7)
]  # 11: batches of 4 are ragged, and so are shares of 4 or 8 devices


def write_pairs(folder: pathlib.Path) -> pathlib.Path:
    """Writes the pairs, and returns their file."""
    file = folder / "pairs.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    return file


def experiment(file: pathlib.Path, **fields: Any) -> Params:
    """Returns an experiment that is evaluated on the pairs on which it is trained."""
    data = PairInput.params(
        source=TsvPairs.params(pattern=str(file)),
        batch_size=4,
        source_length=16,
        target_length=16,
        packing="none",
    )
    model = EncoderDecoder.params(dim=16)
    for kind in (Attention, CrossAttention):
        model.all(kind).set(num_heads=2)
    values = {
        "task": SequenceToSequence.params(model=model),
        "train_input": data,
        "eval_inputs": {"same": data.copy().set(repeat=False)},
        "optimizer": Adam.params(learning_rate=0.02),
        "evaluate": Evaluation.params(
            answers=Answers.params(decoding=Sampling.params(temperature=0.0, max_tokens=12))
        ),
    }
    return Experiment.params(**values | fields)


def start(params: Params) -> tuple[Any, Program]:
    """Returns a built experiment, and its program with the first weights."""
    built = params.build()
    return built, built.runtime.start(built.learner, initial_state(built.learner))


def main() -> None:
    file, decodings = pathlib.Path(sys.argv[1]), {"sampling": Sampling, "beam": Beam}
    runtimes: dict[str, Any] = {
        "local": Local.params(),
        "replicated": Replicated.params(devices=[f"CPU:{i}" for i in range(4)]),
        "mesh": Mesh.params(data=4, model=2),
    }
    for name in ("mesh", "replicated"):  # JAX and TensorFlow have devices of their own
        runtimes[name].build().make_devices(8)
    found: dict[str, Any] = {}
    for name, runtime in runtimes.items():
        built, program = start(experiment(file, runtime=runtime))
        for kind, decoding in decodings.items():
            built.evaluate.answers.decoding = decoding.params(max_tokens=5).build()
            answers = decode_answers(built, program, built.eval_inputs["same"])
            found[f"{name} {kind}"] = [answers, score_answers(built, answers)]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
