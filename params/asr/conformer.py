"""The Conformer on LibriSpeech, with CTC or a transducer (Gulati et al. 2020).

The encoders are the paper's, in sizes S, M and L. The paper decodes with a recurrent neural network
transducer, as `s_transducer`, `m_transducer` and `l_transducer` do. `s`, `m` and `l` have a CTC
head instead, so the published word error rates are not comparable with theirs.

The paper's models have 10.3, 30.7 and 118.8 million weights, and one LSTM of width 320, 640 and 640
that reads the labels so far. It does not give the widths of embedding and joint network. They are
320 here, so the numbers of weights are near the published ones, not equal to them.

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
from lingo.models import ConformerEncoder, ConformerLayer, PredictionNetwork
from lingo.ops.speech import spec_augment_policy
from lingo.optim import Adam, Transformer
from tasks.asr.ctc import CtcRecognition
from tasks.asr.transducer import TransducerRecognition

VOCAB_SIZE = 1_024
WARMUP_STEPS = 10_000
PEAK = 0.05  # learning rate at the end of the warm-up, times sqrt(d)
DROPOUT = 0.1
NARROW = 320  # width of a transducer's embedding and joint network


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


@experiment
def s_transducer(folder: str = "~/librispeech"):
    """Conformer S with a transducer; 10,338,816 weights, where the paper has 10.3 million.

    Built and counted, never trained.

    lingo show --exp=asr.conformer.s_transducer --weights
    """
    return _experiment(folder, dim=144, num_layers=16, num_heads=4, prediction_dim=320)


@experiment
def m_transducer(folder: str = "~/librispeech"):
    """Conformer M with a transducer; 30,735,168 weights, where the paper has 30.7 million.

    Built and counted, never trained.

    lingo show --exp=asr.conformer.m_transducer --weights
    """
    return _experiment(folder, dim=256, num_layers=16, num_heads=4, prediction_dim=640)


@experiment
def l_transducer(folder: str = "~/librispeech"):
    """Conformer L with a transducer; 118,605,632 weights, where the paper has 118.8 million.

    Built and counted, never trained.

    lingo show --exp=asr.conformer.l_transducer --weights
    """
    return _experiment(folder, dim=512, num_layers=17, num_heads=8, prediction_dim=640)


def conformer(*, dim: int, num_layers: int, num_heads: int, dropout_rate: float = DROPOUT) -> Any:
    """Returns a Conformer encoder of width `dim`."""
    cfg = ConformerEncoder.params(output_dim=dim, dropout_rate=dropout_rate)
    cfg.stack.num_layers = num_layers
    cfg.all(Attention).set(num_heads=num_heads)
    cfg.all(FeedForward).set(dropout_rate=dropout_rate)
    cfg.all(ConformerLayer).set(dropout_rate=dropout_rate)
    return cfg


def _recognition(prediction_dim: int | None) -> Any:
    """Returns the params of a task: a transducer with an LSTM of this width; None: CTC."""
    if prediction_dim is None:
        return CtcRecognition.params()
    cfg = TransducerRecognition.params()
    cfg.prediction = PredictionNetwork.params(dim=NARROW, hidden_dim=prediction_dim)
    cfg.joint.hidden_dim = NARROW
    return cfg


def _experiment(
    folder: str, *, dim: int, num_layers: int, num_heads: int, prediction_dim: int | None = None
) -> Any:
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
        task=_recognition(prediction_dim).set(
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
