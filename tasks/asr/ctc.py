"""Speech recognition by connectionist temporal classification (CTC, Graves et al. 2006).

Axes: B utterances, T' frames of the encoder, V labels with the blank, U labels of an utterance.
"""

from __future__ import annotations

from lingo.config.lazy import tf
from lingo.data.array_spec import Specs
from lingo.layers.linear import Linear
from lingo.learner.task import Batch
from lingo.ops.speech.ctc import BLANK, Decoded, ctc_greedy, ctc_is_feasible, ctc_losses
from tasks.asr.recognition import Encoded, Recognition, lacks_blank


class CtcRecognition(Recognition):
    """CTC over the frames of an encoder; id 0, the padding of tokenizers, is the blank.

    An utterance is not feasible if its labels need more frames than the encoder leaves, or the
    blank is among them. Labels of a prediction are the ones of the likeliest path.
    """

    head: Linear = Linear.params(use_bias=True)  # from a frame to logits

    TERM = "ctc"

    def setup(self) -> None:
        super().setup()
        self.head = self.p.head.build(dim=self.encoder_dim, output_dim=self.p.vocab_size)

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns `labels`, int32 [B, U], padded with the blank, and `num_labels`, int32 [B]."""
        return self.decode_labels(self.encode(batch))._asdict()

    def batch_flops(self, specs: Specs) -> int:
        shape, _ = specs["features"]
        return self.encoder.flops(shape) + self.head.flops(self.encoder.output_shape(shape))

    def losses(self, encoded: Encoded, batch: Batch) -> tf.Tensor:
        logits, labels = self._logits(encoded), batch["labels"]
        return ctc_losses(logits, labels, encoded.num_frames, batch["num_labels"]).losses

    def decode_labels(self, encoded: Encoded) -> Decoded:
        """Returns the labels of the likeliest paths, at most U per utterance."""
        most = self.p.max_labels
        found = ctc_greedy(self._logits(encoded), encoded.num_frames)
        labels = tf.pad(found.labels, [[0, 0], [0, most]], constant_values=BLANK)[:, :most]
        return Decoded(labels, tf.minimum(found.num_labels, most))

    def is_feasible(self, batch: Batch) -> tf.Tensor:
        """Returns whether some path gives an utterance's labels, bool [B]."""
        labels, num_labels = batch["labels"], batch["num_labels"]
        return ctc_is_feasible(labels, self.num_frames(batch), num_labels) & lacks_blank(batch)

    def _logits(self, encoded: Encoded) -> tf.Tensor:
        """Returns the logits of frames, float32 [B, T', V]."""
        return tf.cast(self.head(encoded.frames), tf.float32)
