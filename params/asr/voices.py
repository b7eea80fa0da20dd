"""Small Conformers for digits that programs speak; no person speaks in training.

docs/speech_study.md compares SpecAugment, an encoder that sees no later frames, and a transducer.
"""

from __future__ import annotations

from typing import Literal

from lingo.config.params import Params
from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation, Experiment
from lingo.data import AudioInput, CharacterTokenizer
from lingo.datasets import Prompts, SpokenDigits
from lingo.layers import Attention, BatchNorm, Causal
from lingo.models import ConformerConv
from lingo.ops.speech import LogMel, SpecAugment
from lingo.optim import Adam, Cosine, SequentialSchedule, Warmup
from params.asr.conformer import conformer
from params.asr.tones import recognition

NUM_STEPS = 3_000

Head = Literal["ctc", "transducer"]

LONGEST = 304  # frames of a recording, at most
MEAN, STDDEV = 8.3, 1.4  # of a mel bin over the training recordings, in natural logarithms


@experiment
def digits(
    head: Head = "ctc",
    masked: bool = False,
    causal: bool = False,
    people: bool = False,
    num_steps: int = NUM_STEPS,
):
    """A small Conformer reads digits that eSpeak NG and Flite speak.

    With CTC, its 486,046 weights train on 2,726 recordings by eSpeak NG. Evaluations are on eSpeak
    NG's held-out speakers (`voices`); on Flite, a synthesizer that is new to it (`flite`); and with
    `people=True` on ten digits of a person (`people`), for which Debian's asterisk-core-sounds-en-
    wav must be installed. `masked` adds SpecAugment. With `causal` no layer after the first
    convolutions sees later frames, as streaming requires.

    apt-get install espeak-ng flite
    lingo train --exp=asr.voices.digits --logdir=runs/digits
    """
    data = _data()
    warmup = max(1, num_steps // 15)
    fall = Cosine.params(num_steps=num_steps - warmup)
    parts = [(Warmup.params(num_steps=warmup), warmup), (fall, num_steps)]
    return Experiment.params(
        task=recognition(head).set(
            encoder=_encoder(causal=causal), spec_augment=_MASKS.copy() if masked else None
        ),
        train_input=data,
        eval_inputs=_heldout(data, people=people),
        optimizer=Adam.params(
            learning_rate=2e-3,
            schedule=SequentialSchedule.params(parts=parts),
            max_grad_norm=1.0,
        ),
        max_steps=num_steps,
        evaluate=Evaluation.params(every_steps=num_steps // 4),
        checkpoint=Checkpointing.params(every_steps=num_steps // 4),
    )


_MASKS = SpecAugment.params(
    freq_mask_max_bins=8,
    freq_mask_count=2,
    dynamic_time_mask=True,
    time_mask_max_ratio=0.15,
    time_mask_count=2,
)


def _data() -> Params:
    """Returns the training input, with the bandwidth of a telephone, up to 3,800 hertz."""
    return AudioInput.params(
        source=SpokenDigits.params(split="train", heldout_fraction=0.1),
        front_end=LogMel.params(
            sample_rate=8_000,
            num_bins=40,
            max_hertz=3_800.0,
            mean=[MEAN] * 40,
            stddev=[STDDEV] * 40,
        ),
        tokenizer=CharacterTokenizer.params(characters=" abcdefghijklmnopqrstuvwxyz"),
        boundaries=[120, 170, 220, LONGEST],
        constant_frames=False,
        max_labels=24,
        batch_size=16,
        cache=True,
    )


def _heldout(data: Params, *, people: bool) -> dict[str, Params]:
    """Returns the evaluation inputs by name."""
    evals = {
        "voices": SpokenDigits.params(split="heldout", heldout_fraction=0.1),
        "flite": SpokenDigits.params(synthesizer="flite", num_recordings=300),
    }
    if people:
        evals["people"] = Prompts.params()
    once = {"repeat": False, "scores_text": True, "boundaries": [LONGEST]}
    return {name: data.copy().set(source=source, **once) for name, source in evals.items()}


def _encoder(*, causal: bool) -> Params:
    encoder = conformer(dim=64, num_layers=4, num_heads=4, dropout_rate=0.1)
    encoder.all(ConformerConv).set(kernel=16, is_causal=causal)
    encoder.all(BatchNorm).set(statistics_over=16)
    if causal:
        encoder.all(Attention).set(mask=Causal)
    return encoder
