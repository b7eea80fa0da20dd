"""BERT-Large as in rounds 0.7 and 1.0 of MLPerf training, and a small form of it on number words.

v07, v10                     the settings of Google's entries and of the reference points, by batch
numbers                      a small form, in minutes

A run begins with a given checkpoint, and ends when enough of 10,000 held-out rows' masked tokens
are right: 71.2 % by the rules of round 0.7, 72.0 % from round 1.0 on. Rows have 512 tokens, of
which at most 76 are masked. The data are your own, in a folder: part-*.tfrecord as MLPerf's scripts
write them, and eval_10k.tfrecord; `checkpoint` is the path of the given one, without .index. The
full forms were not run here: learning rates and sizes are checked, nothing else.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

from lingo.checkpoints.sources.warm_start import WarmStart
from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation, Experiment
from lingo.data import LearnedWordPieces
from lingo.optim import Lamb, LinearRate, SwitchedWarmup, Warmup, scale_by_root
from lingo.runtimes.mesh.mesh import Mesh
from lingo.trainer.mlperf.rules import Benchmark
from lingo.trainer.mlperf.run_log import MlperfLog
from params.lm.bert import ATTENTION_BIASES, LARGE, VOCAB_SIZE, bert, recompute
from tasks.bert.input import BertInput
from tasks.bert.records import BertExamples, BertRecords
from tasks.bert.task import BertPretraining
from tasks.mt.number_words import NumberTexts

TARGETS: dict[Benchmark, float] = {"bert@0.7.0": 0.712, "bert@1.0.0": 0.72}


class Recipe(NamedTuple):
    """Numbers in which settings differ."""

    rate: float
    num_steps: int  # in which the rate would fall to 0
    warmup_steps: int = 0
    start_step: int = 0  # where the warm-up begins
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.01


V07 = {  # by batch size: Google's entries with 16 and 128 chips of TPU v4, a cloud, 4,096 of v3
    256: Recipe(0.0015, 14_796, 1200),
    768: Recipe(0.00035221, 8000, 420, 0, 0.91063, 0.96497),
    3072: Recipe(0.0015, 1141, 100),
    8192: Recipe(0.00288293, 560, 287, -76, 0.88, 0.88, 0.0166629),
}
V10 = {  # by batch size: MLCommons' reference convergence points of round 1.0
    256: Recipe(0.00035, 13_700),
    448: Recipe(0.0004, 8103),
    1536: Recipe(0.002, 2254, 0, 0, 0.66, 0.996),
    3072: Recipe(0.002, 1141, 100, 0, 0.66, 0.998),
    6144: Recipe(0.0029293, 700, 0, 0, 0.7206, 0.78921, 0.001),
    8192: Recipe(0.00288293, 600, 287, -76, 0.88, 0.88, 0.0166629),
    12_288: Recipe(0.0033, 500, 300, -76, 0.77, 0.885, 0.0147050375),
}


@experiment
def v07(
    batch_size: Literal[256, 768, 3072, 8192] = 8192,
    folder: str = "~/mlperf_bert",
    checkpoint: str | None = None,
    data: int = 512,
):
    """BERT-Large with the settings of Google's entries to round 0.7; 336,226,108 weights.

    With batches of 8,192, on 4,096 chips of TPU v3, the result was 23.567 seconds (Kumar et al.
    2021). The rate rises in 287 steps from step -76, and then jumps to a line that falls to 0 at
    step 560. Evaluations come after every 500,000 rows.

    lingo show --exp=mlperf.bert.v07 --plot_schedule
    """
    cfg = _experiment("bert@0.7.0", V07[batch_size], batch_size, folder, data, every_rows=500_000)
    return cfg.set(init_from=_published_weights(checkpoint))


@experiment
def v10(
    batch_size: Literal[256, 448, 1536, 3072, 6144, 8192, 12_288] = 3072,
    folder: str = "~/mlperf_bert",
    checkpoint: str | None = None,
    data: int = 512,
):
    """BERT-Large with the settings of round 1.0's reference points; 336,226,108 weights.

    The mean of their runs reached 72.0 % after 2,552,704 rows in batches of 256, 2,768,215 of
    3,072, and 4,939,776 of 12,288 (MLCommons' logging package, rcps_bert.json).

    lingo show --exp=mlperf.bert.v10 --plot_schedule
    """
    every_rows = math.floor(0.05 * (230.23 * batch_size + 3e6) / 25_000) * 25_000
    cfg = _experiment("bert@1.0.0", V10[batch_size], batch_size, folder, data, every_rows)
    return cfg.set(init_from=_published_weights(checkpoint))


def _experiment(
    benchmark: Benchmark, recipe: Recipe, batch_size: int, folder: str, data: int, every_rows: int
):
    train = BertRecords.params(
        source=BertExamples.params(pattern=f"{folder}/part-*.tfrecord*"),
        length=512,
        max_predictions=76,
        vocab_size=VOCAB_SIZE,
        batch_size=batch_size,
    )
    heldout = train.copy().set(batch_size=1024, repeat=False)
    heldout.source.pattern = f"{folder}/eval_10k.tfrecord*"
    every_steps = max(1, every_rows // batch_size)
    return Experiment.params(
        task=BertPretraining.params(model=recompute(bert(**LARGE)), dtype="bfloat16"),
        train_input=train,
        eval_inputs={"heldout": heldout},
        optimizer=Lamb.params(
            learning_rate=recipe.rate,
            schedule=_schedule(recipe),
            beta1=recipe.beta1,
            beta2=recipe.beta2,
            weight_decay=recipe.weight_decay,
            no_decay=(ATTENTION_BIASES,),
            no_ratio=(ATTENTION_BIASES,),
        ),
        runtime=Mesh.params(data=data),
        max_steps=recipe.num_steps,
        observers=[MlperfLog.params(benchmark=benchmark)],
        evaluate=Evaluation.params(
            every_steps=every_steps,
            metric="heldout/masked_accuracy",
            goal="max",
            reach=TARGETS[benchmark],
        ),
        checkpoint=Checkpointing.params(every_steps=every_steps),
    )


def _schedule(recipe: Recipe) -> Any:
    fall = LinearRate.params(num_steps=recipe.num_steps)
    if not recipe.warmup_steps:
        return fall
    return SwitchedWarmup.params(
        num_steps=recipe.warmup_steps, start_step=recipe.start_step, then=fall
    )


def _published_weights(checkpoint: str | None):
    """Reads a checkpoint of Devlin et al.'s program, such as the one that MLPerf gives."""
    if checkpoint is None:
        return None
    return WarmStart.params(
        path=checkpoint, rename=CHECKPOINT_NAMES, reshape=True, transpose=TRANSPOSED
    )


_LAYER = r"model/stack/layers/(\d+)/"
_BLOCK = r"bert/encoder/layer_\1/"
CHECKPOINT_NAMES = {  # of weights in the checkpoint of Devlin et al.'s program
    "model/embedding/table": "bert/embeddings/word_embeddings",
    "model/positions/table": "bert/embeddings/position_embeddings",
    "model/types/table": "bert/embeddings/token_type_embeddings",
    "model/norm/scale": "bert/embeddings/LayerNorm/gamma",
    "model/norm/bias": "bert/embeddings/LayerNorm/beta",
    f"{_LAYER}attention/w_(query|key|value)": rf"{_BLOCK}attention/self/\2/kernel",
    f"{_LAYER}attention/b_(query|key|value)": rf"{_BLOCK}attention/self/\2/bias",
    f"{_LAYER}attention/w_output": f"{_BLOCK}attention/output/dense/kernel",
    f"{_LAYER}attention/b_output": f"{_BLOCK}attention/output/dense/bias",
    f"{_LAYER}attention_norm/scale": f"{_BLOCK}attention/output/LayerNorm/gamma",
    f"{_LAYER}attention_norm/bias": f"{_BLOCK}attention/output/LayerNorm/beta",
    f"{_LAYER}ffn/w_in": f"{_BLOCK}intermediate/dense/kernel",
    f"{_LAYER}ffn/b_in": f"{_BLOCK}intermediate/dense/bias",
    f"{_LAYER}ffn/w_out": f"{_BLOCK}output/dense/kernel",
    f"{_LAYER}ffn/b_out": f"{_BLOCK}output/dense/bias",
    f"{_LAYER}ffn_norm/scale": f"{_BLOCK}output/LayerNorm/gamma",
    f"{_LAYER}ffn_norm/bias": f"{_BLOCK}output/LayerNorm/beta",
    "model/pooler/w": "bert/pooler/dense/kernel",
    "model/pooler/b": "bert/pooler/dense/bias",
    "head/dense/w": "cls/predictions/transform/dense/kernel",
    "head/dense/b": "cls/predictions/transform/dense/bias",
    "head/norm/scale": "cls/predictions/transform/LayerNorm/gamma",
    "head/norm/bias": "cls/predictions/transform/LayerNorm/beta",
    "head/bias": "cls/predictions/output_bias",
    "next_sentence/w": "cls/seq_relationship/output_weights",
    "next_sentence/b": "cls/seq_relationship/output_bias",
}
TRANSPOSED = ("next_sentence/w",)

NUM_TRAIN_TEXTS = 3600  # about, of the training data


@experiment
def numbers(batch_size: int = 64, epochs: float = 60.0):
    """A small form: masked words of numbers in two languages, by the rules of BERT.

    A text is a number in English and in Esperanto, so that a masked word can be told from the other
    language. 4 layers of width 64; a run ends when 72 % of the masked tokens of held-out numbers
    are right, which is looked at every two epochs. The rate grows with the root of the batch. Its
    log says that it is a small form. Needs `pip install 'lingo-tf[tokenizers]'`.

    lingo train --exp=mlperf.bert.numbers --logdir=runs/numbers
    """
    epoch = math.ceil(NUM_TRAIN_TEXTS / batch_size)
    texts = NumberTexts.params(num_numbers=4000, split="train", heldout_fraction=0.1)
    train = BertInput.params(
        source=texts,
        tokenizer=LearnedWordPieces.params(source=texts.copy(), vocab_size=150),
        pairs=False,
        length=32,
        max_predictions=5,
        batch_size=batch_size,
    )
    heldout = train.copy().set(batch_size=100, repeat=False)
    heldout.source.split = "heldout"
    num_steps = round(epochs * epoch)
    model = bert(dim=64, num_layers=4, num_heads=4, max_length=32).set(dropout_rate=0.0)
    model.stack.layer.dropout_rate = model.stack.layer.attention.dropout_rate = 0.0
    return Experiment.params(
        task=BertPretraining.params(model=model, next_sentence=None),
        train_input=train,
        eval_inputs={"heldout": heldout},
        optimizer=Lamb.params(
            learning_rate=scale_by_root(0.01, batch_size=batch_size, base_batch_size=64),
            schedule=Warmup.params(num_steps=4 * epoch, then=LinearRate),
            no_decay=(ATTENTION_BIASES,),
            no_ratio=(ATTENTION_BIASES,),
        ),
        max_steps=num_steps,
        observers=[MlperfLog.params(benchmark="bert@1.0.0")],
        evaluate=Evaluation.params(
            every_steps=2 * epoch,
            metric="heldout/masked_accuracy",
            goal="max",
            reach=TARGETS["bert@1.0.0"],
        ),
        checkpoint=Checkpointing.params(every_steps=2 * epoch),
    )
