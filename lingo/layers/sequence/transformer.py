"""One layer of a Transformer: attention, then a feed-forward network, each with a residual.

Axes: B batch, T positions, C positions of a chunk, S memory positions, D model width, N heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from lingo.config.lazy import tf
from lingo.layers.context import annotate
from lingo.layers.dropout import check_rate, dropout
from lingo.layers.feed_forward import FeedForward
from lingo.layers.layer import Layer
from lingo.layers.norm import Norm, RmsNorm
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.positions import sharing_biases
from lingo.ops.dropout import DropoutForm

NormPlacement = Literal["pre", "post", "sandwich"]
"""`pre`: x + f(norm(x)) (Xiong et al. 2020); `post`: norm(x + f(x)) (Vaswani et al. 2017);
`sandwich`: x + norm(f(norm(x))) (Ding et al. 2021, sec. 2.4)."""

Part = Callable[["tf.Tensor"], "tf.Tensor"]
"""A sublayer: a function from [B, T, D] to [B, T, D]."""


class TransformerLayer(Layer):
    """x + attention(norm(x)), then x + ffn(norm(x)) (Vaswani et al. 2017, sec. 3.1).

    Departs from the paper unless `norm_placement="post"`: it normalizes the input of each sublayer,
    not the sums, so that deep stacks train without a careful warm-up (Xiong et al. 2020). With
    `cross_attention`, which comes between the two, it is a decoder layer; `extra_ffn` follows them,
    with its own norm.
    """

    dim: int  # width of the input and of the output
    attention: Layer = Attention  # how positions see each other
    cross_attention: Layer | None = None  # how positions see a memory: CrossAttention
    ffn: FeedForward = FeedForward  # what happens at each position
    extra_ffn: FeedForward | None = None  # another right after it (Zoph et al. 2022, app. C)
    norm: Norm = RmsNorm  # built as often as `norm_placement` says
    norm_placement: NormPlacement = "pre"  # before each part, after each sum, or around each part
    parallel: bool = False  # whether the parts read one input and add up at once (PaLM, sec. 2)
    dropout_rate: float = 0.0  # of what each part adds
    dropout_form: DropoutForm = "element"  # what is dropped together
    drop_path_rate: float = 0.0  # of a part as a whole, for an example: stochastic depth

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
        # norm -> the sublayers that read its output: all with `parallel`, else one each
        self.turns = {"norm": names} if p.parallel else {f"{name}_norm": [name] for name in names}
        for norm in self.turns:
            setattr(self, norm, p.norm.build(dim=p.dim))
        for name in names if p.norm_placement == "sandwich" else []:
            setattr(self, f"{name}_out_norm", p.norm.build(dim=p.dim))
        self.reads_table = bool(sharing_biases(self.attention))

    def __call__(
        self,
        x: tf.Tensor,
        *,
        segments: tf.Tensor | None = None,
        positions: tf.Tensor | None = None,
        prefix: tf.Tensor | None = None,
        memory: tf.Tensor | None = None,
        memory_segments: tf.Tensor | None = None,
        position_table: tf.Tensor | None = None,
        tokens: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Computes the layer.

        Args:
            x: [B, T, D], any float type.
            segments: int32 [B, T], document ids (0: padding); None: one document.
            positions: int32 [B, T], position ids within the document; None: 0, 1, 2, ...
            prefix: bool [B, T], the positions that the mask `Prefix` shows to all of the document;
                None: none.
            memory: [B, S, width of the memory], any float type, for `cross_attention`.
            memory_segments: int32 [B, S], document ids of the memory; None: one document.
            position_table: float32 [num_buckets, N], the table of `RelativeBias(shared=True)`.
            tokens: int32 [B, T], token ids, for networks with `reads_tokens`.

        Returns:
            [B, T, D], in the layer's dtype.

        Raises:
            ValueError: if there is a memory but no cross attention, or the reverse.
        """
        inputs = {"segments": segments, "positions": positions}
        further = self._extra_inputs(prefix=prefix, position_table=position_table, tokens=tokens)
        parts: dict[str, Part] = {
            name: partial(getattr(self, name), **inputs, **more) for name, more in further.items()
        }
        self._check_memory(memory)
        if self.cross_attention is not None:
            if memory is None:
                raise ValueError(f"{self.path or 'layer'}: cross_attention needs a memory")
            parts["cross_attention"] = partial(
                self.cross_attention,
                memory=memory,
                segments=segments,
                memory_segments=memory_segments,
            )
        return self._run_parts(parts, x)

    def step(
        self,
        x: tf.Tensor,
        index: tf.Tensor,
        *,
        positions: tf.Tensor | None = None,
        prefix: tf.Tensor | None = None,
        memory: tf.Tensor | None = None,
        memory_segments: tf.Tensor | None = None,
        position_table: tf.Tensor | None = None,
        tokens: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Computes the next positions.

        Args:
            x: [B, C, D], any float type: positions index, ..., index + C - 1 of the input.
            index: int32 scalar, the number of positions computed before.
            positions: int32 [B, C], position ids; None: index, index + 1, ...
            prefix: bool [B, C], as in `__call__`; None: none.
            memory: [B, S, width of the memory], any float type, in the first step; None in later
                steps.
            memory_segments: int32 [B, S], in every step; None: all of the memory is visible.
            position_table: as in `__call__`, in every step.
            tokens: int32 [B, C], as in `__call__`.

        Returns:
            [B, C, D], in the layer's dtype.

        Raises:
            ValueError: if there is a memory but no cross attention.
        """
        inputs = {"index": index, "positions": positions}
        further = self._extra_inputs(prefix=prefix, position_table=position_table, tokens=tokens)
        parts: dict[str, Part] = {
            name: partial(getattr(self, name).step, **inputs, **more)
            for name, more in further.items()
        }
        self._check_memory(memory)
        if self.cross_attention is not None:
            parts["cross_attention"] = partial(
                self.cross_attention.step,
                index=index,
                memory=memory,
                memory_segments=memory_segments,
            )
        return self._run_parts(parts, x)

    def flops(self, shape: Sequence[int]) -> int:
        """Returns the floating-point operations of one call, with a memory as long as x.

        Args:
            shape: [B, T, D], the shape of x.
        """
        names = [name for turn in self.turns.values() for name in turn]
        return sum(getattr(self, name).flops(shape) for name in names)

    def _extra_inputs(
        self,
        *,
        prefix: tf.Tensor | None,
        position_table: tf.Tensor | None,
        tokens: tf.Tensor | None,
    ) -> dict[str, dict[str, tf.Tensor]]:
        """Returns the inputs of sublayers (without cross attention) that only some of them take."""
        table = position_table if self.reads_table else None
        found = {"attention": _present_inputs(prefix=prefix, position_table=table)}
        for name in ("ffn", "extra_ffn"):
            if (part := getattr(self, name)) is not None:
                asks = any(layer.reads_tokens for layer in part.tree())
                found[name] = _present_inputs(tokens=tokens if asks else None)
        return found

    def _run_parts(self, parts: dict[str, Part], x: tf.Tensor) -> tf.Tensor:
        """Adds the sublayers to x [B, T, D], with norms by `norm_placement`; returns [B, T, D]."""
        placement = self.p.norm_placement
        x = annotate(tf.cast(x, self.p.dtype), "batch", "length", "embed")
        for norm, names in self.turns.items():
            normed = x if placement == "post" else getattr(self, norm)(x)
            for name in names:
                x += self._change(name, parts[name](normed))
            if placement == "post":
                x = getattr(self, norm)(x)
            x = annotate(x, "batch", "length", "embed")
        return x

    def _change(self, name: str, change: tf.Tensor) -> tf.Tensor:
        """Returns what a sublayer adds to x, [B, T, D], for its result [B, T, D]."""
        p = self.p
        if p.norm_placement == "sandwich":
            change = getattr(self, f"{name}_out_norm")(change)
        change = dropout(
            self, change, rate=p.dropout_rate, form=p.dropout_form, name=f"{name}_dropout"
        )
        return dropout(self, change, rate=p.drop_path_rate, form="example", name=f"{name}_path")

    def _check_memory(self, memory: tf.Tensor | None) -> None:
        if memory is not None and self.cross_attention is None:
            raise ValueError(f"{self.path or 'layer'}: a memory, but cross_attention=None")


def _present_inputs(**inputs: tf.Tensor | None) -> dict[str, Any]:
    """Returns the inputs that are not None."""
    return {name: value for name, value in inputs.items() if value is not None}
