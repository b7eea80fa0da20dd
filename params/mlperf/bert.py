"""BERT-Large as in rounds 0.7 and 1.0 of MLPerf training, and a small form of it on number words.

v07, v10                     the settings of Google's entries and of the reference points, by batch
numbers                      a small form, in minutes

A run begins with a given checkpoint. It ends when enough masked tokens of 10,000 held-out rows are
right: 71.2 % by the rules of round 0.7, 72.0 % from round 1.0 on. Rows have 512 tokens, at most 76
of them masked. `folder` has your own data: part-*.tfrecord as MLPerf's scripts write them, and
eval_10k.tfrecord. `checkpoint` is the path of the given checkpoint, without .index. The full forms
were not run here: only their learning rates and sizes are checked.
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
from lingo.trainer.mlperf.rules import RULES, Benchmark
from lingo.trainer.mlperf.run_log import MlperfLog
from params.lm.bert import ATTENTION_BIASES, LARGE, VOCAB_SIZE, bert, recompute
from tasks.bert.input import BertInput
from tasks.bert.records import BertExamples, BertRecords
from tasks.bert.task import BertPretraining
from tasks.mt.number_words import NumberTexts


class Recipe(NamedTuple):
    """The numbers in which settings differ."""

    rate: float
    num_steps: int  # until a linear fall of the rate reaches 0
    warmup_steps: int = 0
    start_step: int = 0  # step at which the warm-up starts
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.01
    num_devices: int | None = None  # number of devices of the entry; None: not published


V07 = {  # by batch size: Google's entries to round 0.7
    256: Recipe(rate=0.0015, num_steps=14_796, warmup_steps=1200, num_devices=16),
    768: Recipe(rate=0.00035221, num_steps=8000, warmup_steps=420, beta1=0.91063, beta2=0.96497),
    3072: Recipe(rate=0.0015, num_steps=1141, warmup_steps=100, num_devices=128),
    8192: Recipe(
        rate=0.00288293,
        num_steps=560,
        warmup_steps=287,
        start_step=-76,
        beta1=0.88,
        beta2=0.88,
        weight_decay=0.0166629,
        num_devices=8192,  # a chip of TPU v3 is two
    ),
}
V10 = {  # by batch size: MLCommons' reference convergence points of round 1.0
    256: Recipe(rate=0.00035, num_steps=13_700),
    448: Recipe(rate=0.0004, num_steps=8103),
    1536: Recipe(rate=0.002, num_steps=2254, beta1=0.66, beta2=0.996),
    3072: Recipe(rate=0.002, num_steps=1141, warmup_steps=100, beta1=0.66, beta2=0.998),
    6144: Recipe(rate=0.0029293, num_steps=700, beta1=0.7206, beta2=0.78921, weight_decay=0.001),
    8192: Recipe(
        rate=0.00288293,
        num_steps=600,
        warmup_steps=287,
        start_step=-76,
        beta1=0.88,
        beta2=0.88,
        weight_decay=0.0166629,
    ),
    12_288: Recipe(
        rate=0.0033,
        num_steps=500,
        warmup_steps=300,
        start_step=-76,
        beta1=0.77,
        beta2=0.885,
        weight_decay=0.0147050375,
    ),
}


@experiment
def v07(
    batch_size: Literal[256, 768, 3072, 8192] = 8192,
    folder: str = "~/mlperf_bert",
    checkpoint: str | None = None,
    data: int | None = None,
):
    """BERT-Large with the settings of Google's entries to round 0.7; 336,226,108 weights.

    Each batch size is the size of one entry: 256 rows with 16 chips of TPU v4, 768 with a slice of
    a cloud, 3,072 with 128 chips of v4, and 8,192 with 4,096 chips of v3. The last entry's result
    was 23.567 seconds (Kumar et al. 2021). Its rate rises from step -76 for 287 steps, and then
    jumps to a line that falls to 0 at step 560. A run is evaluated after every 500,000 rows.

    `data` is the number of devices, by default the entry's, where a chip of TPU v3 is two devices.
    For 768 rows the default is 256.

    lingo show --exp=mlperf.bert.v07 --plot_schedule
    """
    cfg = _experiment("bert@0.7.0", V07[batch_size], batch_size, folder, data, every_rows=500_000)
    return cfg.set(init_from=_published_weights(checkpoint))


@experiment
def v10(
    batch_size: Literal[256, 448, 1536, 3072, 6144, 8192, 12_288] = 3072,
    folder: str = "~/mlperf_bert",
    checkpoint: str | None = None,
    data: int | None = None,
):
    """BERT-Large with the settings of round 1.0's reference points; 336,226,108 weights.

    On average, their runs reached 72.0 % after 2,552,704 rows in batches of 256, 2,768,215 in
    batches of 3,072, and 4,939,776 in batches of 12,288 (MLCommons' logging package,
    rcps_bert.json).

    `data` is the number of devices; None: the greatest common divisor of 512 and the batch size.

    lingo show --exp=mlperf.bert.v10 --plot_schedule
    """
    every_rows = math.floor(0.05 * (230.23 * batch_size + 3e6) / 25_000) * 25_000
    cfg = _experiment("bert@1.0.0", V10[batch_size], batch_size, folder, data, every_rows)
    return cfg.set(init_from=_published_weights(checkpoint))


def _experiment(
    benchmark: Benchmark,
    recipe: Recipe,
    batch_size: int,
    folder: str,
    data: int | None,
    every_rows: int,
):
    if data is None:
        data = recipe.num_devices or math.gcd(batch_size, 512)
    train = BertRecords.params(
        source=BertExamples.params(pattern=f"{folder}/part-*.tfrecord*"),
        length=512,
        max_predictions=76,
        vocab_size=VOCAB_SIZE,
        batch_size=batch_size,
    )
    heldout = train.copy().set(batch_size=data * math.ceil(1024 / data), repeat=False)
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
            reach=RULES[benchmark].target,
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
    """Returns a WarmStart from a checkpoint of Devlin et al.'s program, such as MLPerf's."""
    if checkpoint is None:
        return None
    return WarmStart.params(
        path=checkpoint, rename=CHECKPOINT_NAMES, reshape=True, transpose=TRANSPOSED
    )


_LAYER = r"model/stack/layers/(\d+)/"
_BLOCK = r"bert/encoder/layer_\1/"
CHECKPOINT_NAMES = {  # lingo's names of weights -> names in Devlin et al.'s checkpoints
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

NUM_TRAIN_TEXTS = 3600  # about


@experiment
def numbers(batch_size: int = 64, epochs: float = 60.0):
    """A small form: masked words of numbers in two languages, by BERT's rules; 216,278 weights.

    Each text is a number in English and Esperanto, so the other language reveals a masked word. The
    model has 4 layers and width 64. A run is evaluated every two epochs, and ends when 72 % of the
    masked tokens of held-out numbers are right. The rate grows with the root of the batch. The log
    calls it a small form. Needs `pip install 'lingo-tf[tokenizers]'`.

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
            reach=RULES["bert@1.0.0"].target,
        ),
        checkpoint=Checkpointing.params(every_steps=2 * epoch),
    )
