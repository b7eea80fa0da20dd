"""Listen, Attend and Spell on LibriSpeech's 960 hours, as Lingvo trains it (Chan et al. 2016).

Nothing here was trained on LibriSpeech. Lingvo publishes these word error rates, in percent, of its
models of the same sizes:

    experiment   steps    dev-clean  dev-other  test-clean  test-other
    grapheme     853,200        5.2       15.2         5.4        15.5
    wpm          632,600        4.3       13.0         4.5        13.2

From Lingvo are encoder, decoder, beam search, buckets, Adam with its schedule, the clipping of
gradients, the gradient norm above which an update is left out, and noise of LSTMs, attention,
embedding and softmax layer from step 20,000 on. There are three differences. Decay of weights takes
the place of an L2 loss of 1e-6. A step has one batch of all devices; Lingvo has eight workers that
do not wait for each other. Neither zeros nor an empty frame are added after a recording.

The data are your own, in a folder:

    train/                            train-clean-100, train-clean-360 and train-other-500
    dev-clean/ dev-other/             as LibriSpeech has them
    test-clean/ test-other/
    pieces.model                      only for `wpm`: a SentencePiece model of 16,328 pieces; id 0
                                      is the padding, as with `--pad_id=0 --unk_id=3`
"""

from __future__ import annotations

import math
import string
from typing import Any

from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation, Experiment
from lingo.data import AudioInput, CharacterTokenizer, LibriSpeech, SentencePiece
from lingo.layers import Conv2D
from lingo.layers.initial import Normal
from lingo.learner.weight_noise import WeightNoise
from lingo.models import LasDecoder, LasEncoder
from lingo.optim import Adam, ConstantRate, Exponential, SequentialSchedule
from tasks.asr.attention import AttentionRecognition

NUM_GRAPHEMES = 76  # ids of Lingvo's tokenizer; some are not used here
NUM_PIECES = 16_328
HOLD_STEPS = 50_000  # steps at the first learning rate
HALF_LIFE = 100_000  # steps in which the learning rate halves after them
LEAST = 0.01  # least learning rate, relative to the first one
CHARACTERS = " " + string.ascii_lowercase + string.digits + string.punctuation


@experiment
def grapheme(folder: str = "~/librispeech"):
    """LAS that writes characters; 132,078,844 weights. Built and counted, never trained.

    lingo show --exp=asr.librispeech.grapheme --weights
    lingo train --exp='asr.librispeech.grapheme(folder="~/librispeech")' --logdir=runs/grapheme
    """
    tokenizer = CharacterTokenizer.params(characters=CHARACTERS)
    decoder = LasDecoder.params(dim=NUM_GRAPHEMES)
    # Lingvo's 620 tokens of a text count its end
    return las(folder, tokenizer, decoder=decoder, vocab_size=NUM_GRAPHEMES, max_labels=619)


@experiment
def wpm(folder: str = "~/librispeech"):
    """LAS that writes word pieces; 183,664,872 weights. Built and counted, never trained.

    lingo show --exp=asr.librispeech.wpm --weights
    """
    tokenizer = SentencePiece.params(model=f"{folder}/pieces.model", vocab_size=NUM_PIECES)
    decoder = LasDecoder.params(dim=96)
    return las(folder, tokenizer, decoder=decoder, vocab_size=NUM_PIECES, max_labels=139)


def las(folder: str, tokenizer: Any, *, decoder: Any, vocab_size: int, max_labels: int) -> Any:
    """Returns an experiment with Lingvo's encoder, input and optimizer."""
    data = AudioInput.params(
        source=LibriSpeech.params(folder=f"{folder}/train"),
        tokenizer=tokenizer,
        # 96 rows in batches of the first bucket, 48 in the others
        boundaries=[639, 1062, 1275, 1377, 1449, 1506, 1563, 1710],
        max_labels=max_labels,
        batch_size=48,
    )
    parts = ("dev-clean", "dev-other", "test-clean", "test-other")
    evals = {part: data.copy().set(repeat=False, scores_text=True) for part in parts}
    for part, cfg in evals.items():
        cfg.source.folder = f"{folder}/{part}"
        cfg.boundaries = [*data.boundaries[:-1], 3600]
    encoder = LasEncoder.params()
    encoder.all(Conv2D).set(init=Normal.params(stddev=0.001))
    return Experiment.params(
        task=AttentionRecognition.params(encoder=encoder, decoder=decoder, vocab_size=vocab_size),
        train_input=data,
        eval_inputs={part.replace("-", "_"): cfg for part, cfg in evals.items()},
        optimizer=Adam.params(
            learning_rate=2.5e-4,
            epsilon=1e-6,
            schedule=halved_after_hold(),
            max_grad_norm=1.0,
            discard_grad_norm=100.0,
            weight_decay=1e-6,
        ),
        weight_noise=WeightNoise.params(
            stddev=0.075, start_step=20_000, pattern="encoder/layers/.*|decoder/.*"
        ),
        max_steps=1_000_000,
        evaluate=Evaluation.params(every_steps=10_000),
        checkpoint=Checkpointing.params(every_steps=10_000),
    )


def halved_after_hold() -> Any:
    """Returns a schedule: 1 for `HOLD_STEPS`, then halved every `HALF_LIFE`, down to `LEAST`."""
    fall = math.ceil(HALF_LIFE * math.log2(1 / LEAST))
    return SequentialSchedule.params(
        parts=[
            (ConstantRate, HOLD_STEPS),
            (Exponential.params(num_steps=HALF_LIFE, decay_rate=0.5), fall),
            (ConstantRate.params(value=LEAST), 1),
        ]
    )
