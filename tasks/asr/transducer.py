"""Speech recognition by a recurrent neural network transducer (RNN-T, Graves 2012).

Axes: B utterances, T' frames of the encoder, D model width, P width of the prediction network,
V labels with the blank, U labels of an utterance, N texts, R rows, K hypotheses.
"""

from __future__ import annotations

from typing import Any

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.data.array_spec import Specs
from lingo.layers import context
from lingo.layers.quantization.fold import fold_weights
from lingo.learner.task import Batch
from lingo.models.speech.transducer import FramewiseJoint, PredictionNetwork
from lingo.ops.shape import size_of
from lingo.ops.speech.ctc import BLANK, Decoded
from lingo.ops.speech.transducer import transducer_losses
from lingo.ops.speech.transducer_decode import (
    Hypotheses,
    TransducerModel,
    transducer_beam,
    transducer_greedy,
)
from tasks.asr.recognition import Encoded, Recognition, lacks_blank


class TransducerRecognition(Recognition):
    """A transducer over the frames of an encoder; id 0, the padding of tokenizers, is the blank.

    The loss sums over all paths, with the logits of one frame in memory at a time. An utterance is
    not feasible if it has no frames, or the blank among its labels. Predictions are the `num_beams`
    likeliest texts of a beam search that adds the paths of equal texts; `label_error_rate` is of
    the greedy path.
    """

    prediction: PredictionNetwork = PredictionNetwork.params(dim=128)  # reads the labels so far
    joint: FramewiseJoint = FramewiseJoint  # from a frame and a text to logits
    num_beams: int = 8  # K, hypotheses of a prediction; 1: the greedy path
    max_symbols: int = 4  # most labels per frame of the encoder, in predictions

    TERM = "transducer"

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "num_beams", "max_symbols")

    def setup(self) -> None:
        super().setup()
        p = self.p
        self.prediction = p.prediction.build(vocab_size=p.vocab_size)
        self.joint = p.joint.build(
            dim=self.encoder_dim,
            label_dim=self.prediction.output_dim,
            vocab_size=p.vocab_size,
        )

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns hypotheses, the likeliest first; without [K] and scores if `num_beams` is 1.

        These are `labels`, int32 [B, K, U], padded with the blank; `num_labels`, int32 [B, K]; and
        `scores`, float32 [B, K], their log-probabilities in nats; -1e30 for an absent hypothesis.
        """
        encoded = self.encode(batch)
        if self.p.num_beams == 1:
            return self.decode_labels(encoded)._asdict()
        return self.search(encoded)._asdict()

    def batch_flops(self, specs: Specs) -> int:
        shape, _ = specs["features"]
        num = self.p.max_labels + 1
        total = self.encoder.flops(shape) + self.prediction.flops((shape[0], num))
        return total + self.joint.flops(self.encoder.output_shape(shape), memory_length=num)

    def losses(self, encoded: Encoded, batch: Batch) -> tf.Tensor:
        labels = batch["labels"]
        texts = self.prediction(tf.pad(labels, [[0, 0], [1, 0]], constant_values=BLANK))
        scores = self.joint.score_labels(encoded.frames, texts, labels)
        return transducer_losses(scores, encoded.num_frames, batch["num_labels"])

    def decode_labels(self, encoded: Encoded) -> Decoded:
        """Returns the labels of the greedy path."""
        model, frames = self._model(encoded)
        return transducer_greedy(model, frames, encoded.num_frames, **self._limits)

    def search(self, encoded: Encoded) -> Hypotheses:
        """Returns the hypotheses of the beam search."""
        model, frames = self._model(encoded)
        limits = {"num_beams": self.p.num_beams, **self._limits}
        return transducer_beam(model, frames, encoded.num_frames, **limits)

    def is_feasible(self, batch: Batch) -> tf.Tensor:
        return super().is_feasible(batch) & lacks_blank(batch)

    @property
    def _limits(self) -> dict[str, int]:
        return {"max_symbols": self.p.max_symbols, "max_labels": self.p.max_labels}

    def _model(self, encoded: Encoded) -> tuple[TransducerModel, tf.Tensor]:
        """Returns the networks as functions, and the projected frames, [B, T', J]."""
        call = fold_weights(self, context.current())

        def join(frame: tf.Tensor, texts: tf.Tensor) -> tf.Tensor:
            with context.enter_call(call.derive()):
                return self.joint.join(frame[:, None], texts)[:, 0]

        def read(label: tf.Tensor, state: Any) -> tuple[tf.Tensor, Any]:
            with context.enter_call(call.derive()):
                text, state = self.prediction.advance(label, state)
                return self.joint.project_labels(text[:, None])[:, 0], state

        def start() -> dict[str, tf.Tensor]:
            return self.prediction.start(size_of(encoded.frames, 0))

        with context.enter_call(call.derive()):
            frames = self.joint.project_frames(encoded.frames)
        return TransducerModel(join, read, start), frames
