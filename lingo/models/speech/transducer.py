"""The two small networks of a transducer (Graves 2012), which stand after any encoder.

    labels = PredictionNetwork(tokens)      # what has been written so far
    logits = JointNetwork(frames, labels)   # for each frame and each length of the text

Axes: B batch, T frames, U positions of the text (its labels and the blank before them), D width of
the frames, P width of the prediction network, J width of the joint network, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers import context
from lingo.layers.context import annotate
from lingo.layers.embedding import Embedding
from lingo.layers.initial import ZEROS, FanIn, Initializer
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.layer import Layer
from lingo.layers.product import Product
from lingo.layers.residual import SEQUENCE_AXES, Residual, ResidualCall, batch_residual
from lingo.layers.sequence.recurrent import Lstm, Recurrent
from lingo.ops.speech.transducer import TransducerScores, transducer_scores


class PredictionNetwork(Layer):
    """An embedding and recurrent layers that read the text so far (Graves 2012, sec. 2.1).

    The text begins with the blank, whose embedding stands for an empty text.
    """

    vocab_size: int  # V
    dim: int  # width of the embedding
    hidden_dim: int = 640  # P, width of the recurrent layers
    num_layers: int = 1  # number of recurrent layers
    embedding: Embedding = Embedding  # of the tokens
    network: Recurrent = Lstm  # each layer

    def check(self) -> None:
        ranges.check_positive(self.p, "hidden_dim", "num_layers")

    def setup(self) -> None:
        p = self.p
        self.embedding = p.embedding.build(vocab_size=p.vocab_size, dim=p.dim)
        widths = [p.dim, *[p.hidden_dim] * (p.num_layers - 1)]
        self.networks = [p.network.build(dim=n, hidden_dim=p.hidden_dim) for n in widths]

    @property
    def output_dim(self) -> int:
        """P, the width of the result."""
        return self.p.hidden_dim

    def __call__(self, tokens: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns [B, U, P], in the layer's dtype, for int32 [B, U]: the blank, then labels.

        Of `inputs` it reads `position_ids`.
        """
        x, inputs = self.embedding(tokens), CallInputs(position_ids=inputs.position_ids)
        for network in self.networks:
            x = network(x, inputs=inputs)
        return x

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns [B, C, P] for the next tokens, int32 [B, C]; the first token is the blank."""
        y = self.embedding(x)
        for network in self.networks:
            y = network.step(y, index, inputs=CallInputs(position_ids=inputs.position_ids))
        return y

    def start(self, size: Any) -> dict[str, tf.Tensor]:
        """Returns the state of `size` rows before the blank, the argument of `advance`."""
        names = (f"{n}_{i}" for i, net in enumerate(self.networks) for n in net.state_names)
        return {name: tf.zeros([size, self.p.hidden_dim]) for name in names}

    def advance(
        self, tokens: tf.Tensor, state: Mapping[str, tf.Tensor]
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Returns [R, P] and the state after one more token, int32 [R], of each row.

        It is `step` without caches and without a loop, for searches that reorder rows.
        """
        x, new = self.embedding(tokens[:, None])[:, 0], dict(state)
        for i, network in enumerate(self.networks):
            own = {name: state[f"{name}_{i}"] for name in network.state_names}
            own = network.advance(own, network.input_gates(x))
            new |= {f"{name}_{i}": value for name, value in own.items()}
            x = tf.cast(own["hidden"], self.p.dtype)
        return x, new

    def flops(self, shape: Sequence[int]) -> int:
        return sum(network.flops((*shape[:2], network.p.dim)) for network in self.networks)


class JointNetwork(Layer):
    """Joins frames and text: tanh(frame w_frame + text w_label + b) w_out + b_out.

    This is Graves et al. 2013, sec. 3.2, eq. 20.

    Weights:
        w_frame: [D, J].
        w_label: [P, J].
        b: [J], initially zeros.
        w_out: [J, V].
        b_out: [V], initially zeros.
    """

    dim: int  # D, width of the frames
    label_dim: int  # P, width of the prediction network
    hidden_dim: int = 640  # J
    vocab_size: int  # V, blank included
    init: Initializer = FanIn  # of the matrices

    products = (Product("w_frame"), Product("w_label"), Product("w_out", ("tanh",)))

    def check(self) -> None:
        ranges.check_positive(self.p, "hidden_dim")

    def setup(self) -> None:
        p, init, width = self.p, self.p.init.build(), self.p.hidden_dim
        self.w_frame = self.weight("w_frame", [p.dim, width], axes=("embed", "mlp"), init=init)
        self.w_label = self.weight(
            "w_label", [p.label_dim, width], axes=("embed", "mlp"), init=init
        )
        self.b = self.weight("b", [width], axes=("mlp",), init=ZEROS)
        self.w_out = self.weight("w_out", [width, p.vocab_size], axes=("embed", "vocab"), init=init)
        self.b_out = self.weight("b_out", [p.vocab_size], axes=("vocab",), init=ZEROS)

    def __call__(self, x: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Returns logits, float32 [B, T, U, V].

        Args:
            x: frames [B, T, D], any float type.
            labels: [B, U, P], any float type, the result of a `PredictionNetwork`.
        """
        return self.join(self.project_frames(x), self.project_labels(labels))

    def project_frames(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the frames' term inside the tanh, [B, T, J], for frames [B, T, D]."""
        x = tf.cast(x, self.p.dtype)
        return tf.einsum("btd,dj->btj", *self.operands("w_frame", input=x)) + self.b

    def project_labels(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns the text's term inside the tanh, [B, U, J], for labels [B, U, P]."""
        labels = tf.cast(labels, self.p.dtype)
        return tf.einsum("bup,pj->buj", *self.operands("w_label", input=labels))

    def join(self, frames: tf.Tensor, texts: tf.Tensor) -> tf.Tensor:
        """Returns logits, float32 [B, T, U, V], for projected frames [B, T, J], texts [B, U, J]."""
        hidden = tf.tanh(frames[:, :, None] + texts[:, None])
        hidden = annotate(hidden, "batch", "length", None, "mlp")
        logits = tf.einsum("btuj,jv->btuv", *self.operands("w_out", tanh=hidden)) + self.b_out
        return annotate(tf.cast(logits, tf.float32), "batch", "length", None, "vocab")

    def flops(self, shape: Sequence[int], *, memory_length: int | None = None) -> int:
        """Returns the operations for frames of shape [B, T, D] and a text of U positions.

        `memory_length` is U; None: T.
        """
        batch, length, _ = shape
        num = length if memory_length is None else memory_length
        inside = math.prod(shape) + batch * num * self.p.label_dim
        return 2 * self.p.hidden_dim * (inside + batch * length * num * self.p.vocab_size)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        batch, length, _ = call.shape
        num = call.memory_length or length
        hidden = (batch, length, num, self.p.hidden_dim)
        labels = Residual(1, (batch, num, self.p.label_dim), ("batch", None, None))
        return [
            batch_residual(1, call.shape, "input"),
            labels,
            Residual(1, hidden, ("batch", "length", None, "mlp")),
        ]


class FramewiseJoint(JointNetwork):
    """A joint network whose loss has the logits of one frame in memory at a time.

    Its call is `JointNetwork`'s. `residuals` are of `score_labels`, with [B, T, D] as the input and
    U + 1 as the memory's length.
    """

    def score_labels(self, x: tf.Tensor, texts: tf.Tensor, labels: tf.Tensor) -> TransducerScores:
        """Returns the scores that `transducer_losses` takes.

        Args:
            x: frames [B, T, D], any float type.
            texts: [B, U + 1, P], any float type, a `PredictionNetwork`'s result for the blank and
                the labels.
            labels: int32 [B, U].
        """
        call = context.current()

        def join(frame: tf.Tensor, texts: tf.Tensor, tensors: Any) -> tf.Tensor:
            with context.enter_call(call.derive(**tensors)):
                return self.join(frame[:, None], texts)[:, 0]

        frames, texts = self.project_frames(x), self.project_labels(texts)
        return transducer_scores(join, frames, texts, labels, call.of([self]))

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        batch, length, _ = call.shape
        num, width = call.memory_length or length, self.p.hidden_dim
        return [
            batch_residual(1, call.shape, "input"),
            Residual(1, (batch, num, self.p.label_dim), ("batch", None, None)),
            Residual(1, (batch, length, width), (*SEQUENCE_AXES, "mlp")),
            Residual(1, (batch, num, width), ("batch", None, "mlp")),
            # the lattice by frames and by diagonals, with the sums of the paths
            Residual(6, (batch, length, num), (*SEQUENCE_AXES, None), dtype="float32"),
        ]
