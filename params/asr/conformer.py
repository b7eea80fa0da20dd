"""The Conformer on LibriSpeech, with a CTC head (Gulati et al. 2020).

The encoders are the paper's, in sizes S, M and L. The paper decodes with a recurrent neural network
transducer, which has a decoder of its own. Here a CTC head takes its place, so no published word
error rate is comparable.

From the paper are SpecAugment's policy; Adam with its schedule, of peak 0.05 / sqrt(d); the dropout
rates; and averages of weights for evaluations. Decay of weights takes the place of an L2 loss of
1e-6. There is no noise on weights. The paper gives no batch size.

The data are your own, in a folder:

    train/                            train-clean-100, train-clean-360 and train-other-500
    dev-clean/ dev-other/             as LibriSpeech has them
    test-clean/ test-other/
    pieces.model                      a SentencePiece model of 1,024 pieces; id 0 is the padding,
                                      as with `--pad_id=0 --unk_id=3`, because it is the blank here
"""

from __future__ import annotations

from typing import Any

from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation, Experiment
from lingo.data import AudioInput, LibriSpeech, SentencePiece
from lingo.layers import Attention, FeedForward
from lingo.models import ConformerEncoder, ConformerLayer
from lingo.ops.speech import spec_augment_policy
from lingo.optim import Adam, Transformer
from tasks.asr.ctc import CtcRecognition

VOCAB_SIZE = 1_024
WARMUP_STEPS = 10_000
PEAK = 0.05  # learning rate at the end of the warm-up, times sqrt(d)
DROPOUT = 0.1


@experiment
def s(folder: str = "~/librispeech"):
    """Conformer S: 16 layers, width 144, 4 heads; the encoder has 8,713,152 weights.

    With the head it has 8,861,632. Built and counted, never trained.

    lingo show --exp=asr.conformer.s --weights
    lingo train --exp='asr.conformer.s(folder="~/librispeech")' --logdir=runs/conformer
    """
    return _experiment(folder, dim=144, num_layers=16, num_heads=4)


@experiment
def m(folder: str = "~/librispeech"):
    """Conformer M: 16 layers, width 256, 4 heads; the encoder has 27,331,584 weights.

    With the head it has 27,594,752. Built and counted, never trained.

    lingo show --exp=asr.conformer.m --weights
    """
    return _experiment(folder, dim=256, num_layers=16, num_heads=4)


@experiment
def l(folder: str = "~/librispeech"):
    """Conformer L: 17 layers, width 512, 8 heads; the encoder has 115,120,128 weights.

    With the head it has 115,645,440. Built and counted, never trained.

    lingo show --exp=asr.conformer.l --weights
    """
    return _experiment(folder, dim=512, num_layers=17, num_heads=8)


def conformer(*, dim: int, num_layers: int, num_heads: int, dropout_rate: float = DROPOUT) -> Any:
    """Returns a Conformer encoder of width `dim`."""
    cfg = ConformerEncoder.params(output_dim=dim, dropout_rate=dropout_rate)
    cfg.stack.num_layers = num_layers
    cfg.all(Attention).set(num_heads=num_heads)
    cfg.all(FeedForward).set(dropout_rate=dropout_rate)
    cfg.all(ConformerLayer).set(dropout_rate=dropout_rate)
    return cfg


def _experiment(folder: str, *, dim: int, num_layers: int, num_heads: int) -> Any:
    """Returns an experiment on LibriSpeech with an encoder of width `dim`."""
    pieces = SentencePiece.params(model=f"{folder}/pieces.model", vocab_size=VOCAB_SIZE)
    data = AudioInput.params(
        source=LibriSpeech.params(folder=f"{folder}/train"),
        tokenizer=pieces,
        boundaries=[400, 800, 1200, 1600, 2000, 3000],
        max_labels=200,
        batch_size=96,
    )
    parts = ("dev-clean", "dev-other", "test-clean", "test-other")
    evals = {part: data.copy().set(repeat=False, scores_text=True) for part in parts}
    for part, cfg in evals.items():
        cfg.source.folder = f"{folder}/{part}"
    return Experiment.params(
        task=CtcRecognition.params(
            encoder=conformer(dim=dim, num_layers=num_layers, num_heads=num_heads),
            spec_augment=spec_augment_policy("conformer"),
        ),
        train_input=data,
        eval_inputs={part.replace("-", "_"): cfg for part, cfg in evals.items()},
        optimizer=Adam.params(
            learning_rate=PEAK * WARMUP_STEPS**0.5,
            beta2=0.98,
            epsilon=1e-9,
            schedule=Transformer.params(model_dim=dim, warmup_steps=WARMUP_STEPS),
            max_grad_norm=1.0,
            weight_decay=1e-6,
            min_decay_rank=2,
            ema_decay=0.9999,
        ),
        max_steps=100_000,
        evaluate=Evaluation.params(every_steps=5_000, weights="ema"),
        checkpoint=Checkpointing.params(every_steps=5_000),
    )
