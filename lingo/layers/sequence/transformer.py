"""One layer of a Transformer: attention, then a feed-forward network, each with a residual.

Axes: B batch, T positions, C positions of a chunk, S memory positions, D model width, N heads.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

from lingo.config.lazy import tf
from lingo.layers.context import annotate
from lingo.layers.dropout import check_rate, dropout
from lingo.layers.feed_forward import FeedForward
from lingo.layers.inputs import NO_INPUTS, CallInputs, needs_token_ids
from lingo.layers.layer import Layer
from lingo.layers.norm import Norm, RmsNorm
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.positions import sharing_biases
from lingo.ops.dropout import DropoutForm

NormPlacement = Literal["pre", "post", "sandwich"]
"""Where a sublayer f is normalized. `pre`: x + f(norm(x)) (Xiong et al. 2020). `post`:
norm(x + f(x)) (Vaswani et al. 2017). `sandwich`: x + norm(f(norm(x))) (Ding et al. 2021,
sec. 2.4)."""


class TransformerLayer(Layer):
    """x + attention(norm(x)), then x + ffn(norm(x)) (Vaswani et al. 2017, sec. 3.1).

    With `cross_attention`, a third sublayer between the two, this is a decoder layer. `extra_ffn`
    is a last sublayer. Each sublayer has its own norm, unless `parallel` is set.

    Departs from the paper unless `norm_placement="post"`: the input of each sublayer is normalized,
    not the sum, so that deep stacks train without a careful warm-up (Xiong et al. 2020).
    """

    dim: int  # width of the input and of the output
    attention: Layer = Attention  # how positions see each other
    # how positions see a memory, such as CrossAttention; None: they see no memory
    cross_attention: Layer | None = None
    ffn: FeedForward = FeedForward  # the network at each position
    # a second network at each position, after `ffn` (Zoph et al. 2022, app. C); None: no such one
    extra_ffn: FeedForward | None = None
    norm: Norm = RmsNorm  # the normalization, built as often as `norm_placement` needs
    norm_placement: NormPlacement = "pre"  # before sublayers, after their sums, or around sublayers
    parallel: bool = False  # whether sublayers read the same input and add up (PaLM, sec. 2)
    dropout_rate: float = 0.0  # dropout rate of each sublayer's output
    dropout_form: DropoutForm = "element"  # what is dropped together
    # probability that a sublayer's whole output is dropped, per example (stochastic depth)
    drop_path_rate: float = 0.0

    def check(self) -> None:
        check_rate("dropout_rate", self.p.dropout_rate)
        check_rate("drop_path_rate", self.p.drop_path_rate)

    def setup(self) -> None:
        p = self.p
        names = ["attention", "ffn"]
        self.attention = p.attention.build(dim=p.dim)
        self.cross_attention = p.cross_attention and p.cross_attention.build(dim=p.dim)
        if self.cross_attention is not None:
            names.insert(1, "cross_attention")
        self.ffn = p.ffn.build(dim=p.dim)
        self.extra_ffn = p.extra_ffn and p.extra_ffn.build(dim=p.dim)
        if self.extra_ffn is not None:
            names.append("extra_ffn")
        # norm -> the sublayers that read its output: with `parallel` all sublayers, else only one
        self.sublayers = (
            {"norm": names} if p.parallel else {f"{name}_norm": [name] for name in names}
        )
        for norm in self.sublayers:
            setattr(self, norm, p.norm.build(dim=p.dim))
        for name in names if p.norm_placement == "sandwich" else []:
            setattr(self, f"{name}_out_norm", p.norm.build(dim=p.dim))
        self.reads_table = bool(sharing_biases(self.attention))

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Adds the results of the sublayers to x, [B, T, D], any float type.

        Raises ValueError if `inputs` has a memory and there is no cross attention, or the reverse.
        """
        return self._run(x, inputs)

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        return self._run(x, inputs._replace(segments=None), index)

    def flops(self, shape: Sequence[int], *, memory_length: int | None = None) -> int:
        """Returns the operations of one call for x of shape [B, T, D].

        `memory_length` is the length of the memory of cross attention; None: T.
        """
        names = itertools.chain.from_iterable(self.sublayers.values())
        return sum(getattr(self, name).flops(shape, memory_length=memory_length) for name in names)

    def _split_inputs(self, inputs: CallInputs) -> dict[str, CallInputs]:
        """Returns sublayer name -> the inputs that this sublayer reads.

        A sublayer gets no other inputs, so that `Remat` around it does not store them.
        """
        if inputs.memory is not None and self.cross_attention is None:
            raise ValueError(f"{self.path or 'layer'}: a memory, but cross_attention=None")
        documents = CallInputs(segments=inputs.segments, position_ids=inputs.position_ids)
        table = inputs.position_table if self.reads_table else None
        parts = {"attention": documents._replace(prefix=inputs.prefix, position_table=table)}
        if self.cross_attention is not None:
            parts["cross_attention"] = CallInputs(
                memory=inputs.memory,
                memory_segments=inputs.memory_segments,
                segments=inputs.segments,
            )
        for name in ("ffn", "extra_ffn"):
            if (part := getattr(self, name)) is not None:
                token_ids = inputs.token_ids if needs_token_ids(part) else None
                parts[name] = documents._replace(token_ids=token_ids)
        return parts

    def _run(self, x: tf.Tensor, inputs: CallInputs, index: tf.Tensor | None = None) -> tf.Tensor:
        """Adds the results of the sublayers to x [B, T, D].

        With an `index`, it calls the sublayers' `step` instead of `__call__`.
        """
        placement, part_inputs = self.p.norm_placement, self._split_inputs(inputs)
        x = annotate(tf.cast(x, self.p.dtype), "batch", "length", "embed")

        def compute(name: str, x: tf.Tensor, **inputs: CallInputs) -> tf.Tensor:
            part = getattr(self, name)
            return part(x, **inputs) if index is None else part.step(x, index, **inputs)

        for norm, names in self.sublayers.items():
            normalized = x if placement == "post" else compute(norm, x)
            for name in names:
                change = compute(name, normalized, inputs=part_inputs[name])
                if placement == "sandwich":
                    change = compute(f"{name}_out_norm", change)
                x += self._drop(name, change)
            if placement == "post":
                x = compute(norm, x)
            x = annotate(x, "batch", "length", "embed")
        return x

    def _drop(self, name: str, change: tf.Tensor) -> tf.Tensor:
        """Returns a sublayer's output, [B, T, D], with dropout in training."""
        p = self.p
        change = dropout(
            self, change, rate=p.dropout_rate, form=p.dropout_form, name=f"{name}_dropout"
        )
        return dropout(self, change, rate=p.drop_path_rate, form="example", name=f"{name}_path")
