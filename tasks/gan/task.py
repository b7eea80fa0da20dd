"""Generative adversarial networks: one network makes images, another tells them from data.

    Generator      latents [B, Z] -> [B, H / 2, W / 2, 2 F] -> [B, H, W, F] -> images [B, H, W, C]
    Discriminator  images [B, H, W, C] -> [B, H / 2, W / 2, F] -> [B, H / 4, W / 4, 2 F]
                   -> logits [B]

    in each step:
        the discriminator learns: data against images of the generator as it is
        the generator learns: its images against the discriminator that has just learned

Axes: B batch, Z latent width, H height, W width, C channels of an image, F filters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import Specs
from lingo.layers import Conv2D, Linear, TransposedConv2D, context
from lingo.layers.layer import Layer
from lingo.layers.residual import Residual, ResidualCall, batch_residual
from lingo.layers.window import annotate_image
from lingo.learner.phase import Phase
from lingo.learner.task import Batch, Task
from lingo.metrics.media import Image, Media
from lingo.metrics.metric import weighted_mean
from lingo.ops import random
from tasks.gan.frechet import ENTRIES, frechet_distance, frechet_sums
from tasks.image.offers import check_images, check_offers

_SLOPE = 0.2  # of leaky ReLUs for negative inputs (Radford et al. 2016, sec. 3)


class Generator(Layer):
    """Makes an image of each random vector, with a transposed convolution (Radford et al. 2016).

    Departs from the paper: one doubling of height and width in place of four, as small images need
    it, and no batch norm, so that an image does not depend on the others of its batch.
    """

    latent_dim: int  # Z; the task offers it
    image_shape: tuple[int, int, int]  # (H, W, C); the task offers it
    num_filters: int = 32  # F
    hidden: Linear = Linear.params(use_bias=True)  # from latents to the first activations
    doubling: TransposedConv2D = TransposedConv2D.params(kernel=(4, 4), use_bias=True)
    last: Conv2D = Conv2D.params(use_bias=True)

    def check(self) -> None:
        ranges.check_positive(self.p, "latent_dim", "num_filters")
        _check_shape(self.p.image_shape, multiple=2)

    def setup(self) -> None:
        p = self.p
        self.hidden = p.hidden.build(dim=p.latent_dim, output_dim=math.prod(self._first_shape()))
        self.doubling = p.doubling.build(dim=2 * p.num_filters, output_dim=p.num_filters)
        self.last = p.last.build(dim=p.num_filters, output_dim=p.image_shape[-1])

    def __call__(self, latents: tf.Tensor) -> tf.Tensor:
        """Returns images, [B, H, W, C] in -1..1, in the layer's dtype, of latents [B, Z]."""
        x = tf.nn.relu(self.hidden(latents))
        x = annotate_image(tf.reshape(x, [-1, *self._first_shape()]))
        return tf.tanh(self.last(tf.nn.relu(self.doubling(x))))

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the images of latents of shape [B, Z]."""
        return (shape[0], *self.p.image_shape)

    def flops(self, shape: Sequence[int]) -> int:
        first = (shape[0], *self._first_shape())
        large = self.doubling.output_shape(first)
        return self.hidden.flops(shape) + self.doubling.flops(first) + self.last.flops(large)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return [batch_residual(1, self.output_shape(call.shape), "output")]

    def _first_shape(self) -> tuple[int, int, int]:
        height, width, _ = self.p.image_shape
        return (height // 2, width // 2, 2 * self.p.num_filters)


class Discriminator(Layer):
    """Gives each image a logit: how much it looks like data (Radford et al. 2016, sec. 3)."""

    image_shape: tuple[int, int, int]  # (H, W, C); the task offers it
    num_filters: int = 32  # F
    conv: Conv2D = Conv2D.params(kernel=(5, 5), stride=2, use_bias=True)  # each convolution
    head: Linear = Linear.params(use_bias=True)

    def check(self) -> None:
        ranges.check_positive(self.p, "num_filters")
        _check_shape(self.p.image_shape, multiple=4)

    def setup(self) -> None:
        p, (height, width, channels) = self.p, self.p.image_shape
        self.convs = [
            p.conv.build(dim=channels, output_dim=p.num_filters),
            p.conv.build(dim=p.num_filters, output_dim=2 * p.num_filters),
        ]
        self.head = p.head.build(dim=height // 4 * (width // 4) * 2 * p.num_filters, output_dim=1)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns logits, [B], in the layer's dtype, of images x, [B, H, W, C] in -1..1."""
        for conv in self.convs:
            x = tf.nn.leaky_relu(conv(x), _SLOPE)
        return self.head(tf.reshape(x, [-1, self.head.p.dim]))[:, 0]

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the logits of images of shape [B, H, W, C]."""
        return (shape[0],)

    def flops(self, shape: Sequence[int]) -> int:
        total = 0
        for conv in self.convs:
            total, shape = total + conv.flops(shape), conv.output_shape(shape)
        return total + self.head.flops((shape[0], self.head.p.dim))

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []  # the gradient of a leaky ReLU reads its result, which is the next layer's input


def _check_shape(image_shape: tuple[int, int, int], *, multiple: int) -> None:
    """Raises ParamError unless height and width are positive multiples of `multiple`."""
    if any(size < 1 or size % multiple for size in image_shape[:2]) or image_shape[2] < 1:
        raise ParamError(
            f"image_shape={image_shape}: height and width have to be multiples of {multiple}"
        )


_COLUMNS = 8  # of the picture of samples
_ENLARGED = 4  # times, since images are small
_GAP = 2  # pixels between two images
_EPSILON = 1e-12  # keeps the gradient of a norm of 0 finite


class ImageGan(Task):
    """Images from random vectors, by two networks against each other (Goodfellow et al. 2014).

    `non_saturating` is the loss of sec. 3 there: the discriminator minimizes the cross-entropy of
    telling data from samples, and the generator minimizes the cross-entropy of its samples with the
    label of data. `wasserstein` is the difference of the mean logits, with a penalty on the norm of
    the discriminator's gradient at random points between data and samples (Gulrajani et al. 2017,
    algorithm 1); it wants a `generator_every_steps` of 5.

    Latents are uniform in -1..1. In training they differ in each step; in evaluations and
    predictions each example has a fixed one. The metric `frechet` is the squared Frechet distance
    between pixels of data and of as many samples: 0 for equal means and covariances.
    """

    generator: Layer = Generator  # from latents [B, Z] to images [B, H, W, C] in -1..1
    discriminator: Layer = Discriminator  # from images in -1..1 to logits [B]
    image_shape: tuple[int, int, int]  # (H, W, C) of the input's images
    latent_dim: int = 32  # Z
    form: Literal["non_saturating", "wasserstein"] = "non_saturating"  # of the loss
    generator_every_steps: int = 1  # the generator learns at every such step
    gradient_penalty: float = 10.0  # coefficient of the penalty of `wasserstein`

    def check(self) -> None:
        ranges.check_positive(self.p, "latent_dim", "generator_every_steps", "image_shape")
        ranges.check_not_negative(self.p, "gradient_penalty")

    def setup(self) -> None:
        shape = self.p.image_shape
        self.generator = self.p.generator.build(latent_dim=self.p.latent_dim, image_shape=shape)
        self.discriminator = self.p.discriminator.build(image_shape=shape)

    def check_input(self, offers: Mapping[str, Any]) -> None:
        shape, num_classes = self.p.image_shape, offers.get("num_classes", 0)
        wanted = "ImageInput, or another with images"
        check_offers(offers, num_classes=num_classes, image_shape=shape, wanted=wanted)

    def phases(self) -> dict[str, Phase]:
        every_steps = self.p.generator_every_steps
        return {
            "discriminator": Phase(("discriminator/.*",), loss="discriminator_loss"),
            "generator": Phase(("generator/.*",), loss="generator_loss", every_steps=every_steps),
        }

    def discriminator_loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns `data`, `samples` and, for `wasserstein`, `penalty`: float32 scalars."""
        images, samples = self._images(batch), tf.stop_gradient(self._samples(batch))
        data, made = self._logits(images), self._logits(samples)
        if self.p.form == "non_saturating":
            losses = {"data": tf.nn.softplus(-data), "samples": tf.nn.softplus(made)}
        else:
            penalty = self._penalty(batch, images, samples)
            losses = {"data": -data, "samples": made, "penalty": penalty}
        return {term: tf.reduce_sum(batch["weights"] * loss) for term, loss in losses.items()}

    def generator_loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the term `samples`, a float32 scalar."""
        logits = self._logits(self._samples(batch))
        loss = tf.nn.softplus(-logits) if self.p.form == "non_saturating" else -logits
        return {"samples": tf.reduce_sum(batch["weights"] * loss)}

    def coefficients(self) -> dict[str, float]:
        has_penalty = self.p.form == "wasserstein"
        return {"discriminator/penalty": self.p.gradient_penalty} if has_penalty else {}

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        images, samples, weights = self._images(batch), self._samples(batch), batch["weights"]
        data, made = self._logits(images), self._logits(samples)
        sums = frechet_sums(self._pixels(images), self._pixels(samples), weights=weights)
        states: dict[str, dict[str, tf.Tensor]] = {"frechet": sums}
        if self.p.form == "wasserstein":
            return states | {"margin": weighted_mean(data - made, weights)}
        return states | {
            "accuracy/data": weighted_mean(data > 0, weights),
            "accuracy/samples": weighted_mean(made <= 0, weights),
        }

    def read_metric(self, name: str, state: Mapping[str, Any]) -> dict[str, float]:
        if set(state) == ENTRIES:
            return {name: frechet_distance(state)}
        return super().read_metric(name, state)

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns `samples`, float32 [B, H, W, C] in 0..1, and the `logits` of `images`, [B]."""
        logits = self._logits(self._images(batch))
        return {"samples": _to_levels(self._samples(batch)), "logits": logits}

    def summaries(
        self, batch: Mapping[str, np.ndarray], predictions: Mapping[str, np.ndarray]
    ) -> dict[str, Media | float]:
        if self.p.image_shape[-1] not in (1, 3):
            return {}
        return {
            "samples": Image(join_images(predictions["samples"]), "Images of the generator."),
            "data": Image(join_images(batch["images"]), "Images of the input."),
        }

    def batch_flops(self, specs: Specs) -> int:
        """Returns the operations of one call of each network for a batch."""
        return sum(self._call_flops(specs))

    def step_flops(self, specs: Specs) -> int:
        """Returns the operations of both phases, in the mean over steps.

        The discriminator learns from two batches, which takes three passes each, and so does the
        generator from one. Its gradient passes through the discriminator, whose weights need none
        then: two passes. The penalty takes a pass, its gradient, and the gradients of both: six.
        """
        generator, discriminator = self._call_flops(specs)
        has_penalty = self.p.form == "wasserstein"
        first = generator + (12 if has_penalty else 6) * discriminator
        return first + (3 * generator + 2 * discriminator) // self.p.generator_every_steps

    def _call_flops(self, specs: Specs) -> tuple[int, int]:
        size = specs["images"][0][0]
        latents, images = (size, self.p.latent_dim), (size, *self.p.image_shape)
        return self.generator.flops(latents), self.discriminator.flops(images)

    def _images(self, batch: Batch) -> tf.Tensor:
        """Returns the images of a batch, float32 [B, H, W, C] in -1..1."""
        images = batch["images"]
        check_images(images, field="image_shape", shape=self.p.image_shape)
        if images.dtype == tf.uint8:
            images = tf.cast(images, tf.float32) / 255.0
        return 2.0 * images - 1.0

    def _samples(self, batch: Batch) -> tf.Tensor:
        """Returns an image for each example, float32 [B, H, W, C] in -1..1."""
        latents = 2.0 * self._draw("latents", batch, self.p.latent_dim) - 1.0
        return tf.cast(self.generator(latents), tf.float32)

    def _pixels(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the levels of images, [B, H W C]."""
        return tf.reshape(_to_levels(images), [-1, math.prod(self.p.image_shape)])

    def _logits(self, images: tf.Tensor) -> tf.Tensor:
        return tf.cast(self.discriminator(images), tf.float32)

    def _draw(self, name: str, batch: Batch, size: int) -> tf.Tensor:
        """Returns random numbers of each example, float32 [B, size] in 0..1."""
        call = context.current()
        if call.training:
            key = random.fold(self.random_key(name), call.rows)
        else:
            ids = batch.get("example_id", tf.range(tf.shape(batch["weights"])[0]))
            key = random.fold(random.fold(random.root_key(0), random.text_hash(name)), ids)
        return random.uniform(key, size)

    def _penalty(self, batch: Batch, images: tf.Tensor, samples: tf.Tensor) -> tf.Tensor:
        """Returns for each example (|gradient| - 1)^2 at a point between its images, [B]."""
        shares = self._draw("shares", batch, 1)[:, :, None, None]
        between = shares * images + (1.0 - shares) * samples
        with tf.GradientTape() as tape:
            tape.watch(between)
            logits = self._logits(between)
        gradients = tf.convert_to_tensor(tape.gradient(logits, between))
        squares = tf.reduce_sum(tf.square(gradients), axis=[1, 2, 3])
        return (tf.sqrt(squares + _EPSILON) - 1.0) ** 2


def join_images(images: np.ndarray) -> np.ndarray:
    """Returns one picture of images [N, H, W, C], eight in a row: [height, width, C], enlarged."""
    rest = -len(images) % _COLUMNS
    framed = np.pad(images, [(0, rest), (0, _GAP), (0, _GAP), (0, 0)], constant_values=1)
    _, height, width, channels = framed.shape
    rows = framed.reshape(-1, _COLUMNS, height, width, channels).transpose(0, 2, 1, 3, 4)
    page = rows.reshape(-1, _COLUMNS * width, channels)
    return page.repeat(_ENLARGED, 0).repeat(_ENLARGED, 1)


def _to_levels(images: tf.Tensor) -> tf.Tensor:
    """Returns images in -1..1 of any shape as levels in 0..1, float32."""
    return 0.5 * (images + 1.0)
