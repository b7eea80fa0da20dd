"""Labelled images of another input, mixed in pairs: MixUp and CutMix.

    MixedInput.params(input=GlyphInput, batch_size=128, mixup_rate=0.5, cutmix_rate=0.5)

Axes: B examples, H height, W width, C channels, K classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lingo.config import ranges
from lingo.config.params import ParamError, Params
from lingo.data.array_spec import ArraySpec
from lingo.data.derived_input import DerivedInput
from lingo.data.files import DataError
from lingo.data.input import Input
from lingo.ops import random
from lingo.ops.image.mixing import LabelledBatch, cutmix, mixup


class MixedInput(DerivedInput):
    """Another input's images, each mixed with the next one, for training.

    Example n is mixed with example n + 1 of the other input's endless order, both as that input
    augments them. So an example does not depend on how a batch is split or where a run resumes; for
    B consecutive examples, B + 1 are read. A random number per example decides whether it is mixed
    by MixUp (Zhang et al. 2018), by CutMix (Yun et al. 2019) or not at all. Mixed uint8 images are
    rounded to whole levels. A single pass (`repeat=False`) is for evaluation: nothing is mixed.

    The other input is built with the `batch_size`, `seed` and `repeat` of the MixedInput.

    Batches: as in the other input, but its `labels`, int [B], become shares of the classes,
    float32 [B, K].
    """

    input: Input  # has `images` [B, H, W, C], uint8, or float32 in 0..1, and `labels`, int [B]
    num_classes: int | None = None  # K; None: the number that the input offers
    mixup_rate: float = 1.0  # probability that MixUp mixes an example
    mixup_alpha: float = 0.2  # weights are drawn from Beta(alpha, alpha); near 0: almost 0 or 1
    cutmix_rate: float = 0.0  # probability that CutMix mixes an example
    cutmix_alpha: float = 1.0  # areas are drawn from Beta(alpha, alpha); 1: uniformly

    thread_safe = True

    def check(self) -> None:
        super().check()
        p = self.p
        ranges.check_positive(p, "num_classes", "mixup_alpha", "cutmix_alpha")
        if min(p.mixup_rate, p.cutmix_rate) < 0 or p.mixup_rate + p.cutmix_rate > 1:
            raise ParamError(
                f"mixup_rate={p.mixup_rate} and cutmix_rate={p.cutmix_rate} must be probabilities"
                " whose sum is at most 1: an example is mixed in one way or none"
            )

    def setup(self) -> None:
        super().setup()
        self._num_classes: int = self.p.num_classes or self.input.offers().get("num_classes", 0)
        if not self._num_classes:
            raise ParamError(
                f"input: {type(self.input).__name__} does not offer num_classes: set num_classes"
            )

    @property
    def declares_late(self) -> bool:
        return self.input.declares_late

    def offers(self) -> dict[str, Any]:
        return super().offers() | {"num_classes": self._num_classes}

    def unlabeled_params(self, path: str) -> Params:
        """Returns the params of the other input: without labels, there is nothing to mix."""
        return self.input.unlabeled_params(path)

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        keys, p = self._keys(numbers), self.p
        by_mixup, by_cutmix = self._select(keys)
        read = np.union1d(numbers, numbers[by_mixup | by_cutmix] + 1)
        arrays = self.input.examples(read)
        batch = LabelledBatch(arrays["images"], self._shares(arrays["labels"], read))
        own, partners = np.searchsorted(read, numbers), np.searchsorted(read, numbers + 1)
        mixed = _take(batch, own)
        for mix, chosen, alpha in (
            (mixup, by_mixup, p.mixup_alpha),
            (cutmix, by_cutmix, p.cutmix_alpha),
        ):
            if chosen.any():
                own_keys = random.Key(keys.high[chosen], keys.low[chosen])
                pairs = _take(batch, own[chosen]), _take(batch, partners[chosen])
                changed = self._mix(mix, *pairs, keys=own_keys, alpha=alpha)
                mixed.images[chosen], mixed.labels[chosen] = changed
        rest = {name: array[own] for name, array in arrays.items()}
        return rest | mixed._asdict()

    def specs(self) -> dict[str, ArraySpec]:
        specs, size = self.input.specs(), self.p.batch_size
        shapes = {name: len(shape) for name, (shape, _) in specs.items()}
        if (shapes.get("images"), shapes.get("labels")) != (4, 1):
            raise ParamError(
                f"input: {type(self.input).__name__} has {', '.join(specs)}, but MixedInput needs"
                " images [B, H, W, C] and labels, int [B]"
            )
        return specs | {"labels": ((size, self._num_classes), "float32")}

    def check_specs(self) -> None:
        self.input.check_specs()
        super().check_specs()

    def code_line(self) -> str:
        return self.input.code_line()

    def _select(self, keys: random.Key) -> tuple[np.ndarray, np.ndarray]:
        """Returns whether MixUp mixes each example, bool [B], and whether CutMix does, bool [B]."""
        choice, p = random.uniform(random.fold(keys, random.text_hash("choice"))), self.p
        by_mixup = p.repeat & (choice < p.mixup_rate)
        return by_mixup, p.repeat & ~by_mixup & (choice < p.mixup_rate + p.cutmix_rate)

    def _shares(self, labels: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Returns one-hot labels, float32 [B, K], of labels, int [B]; errors name the example."""
        is_wrong = (labels < 0) | (labels >= self._num_classes)
        if is_wrong.any():
            (where,) = self.origins(numbers[is_wrong][:1])
            raise DataError(
                f"the label of example {where} is {labels[is_wrong][0]}, but there are"
                f" {self._num_classes} classes, from 0"
            )
        return np.eye(self._num_classes, dtype=np.float32)[labels]

    def _mix(self, mix: Any, batch: LabelledBatch, partners: LabelledBatch, **given: Any) -> Any:
        """Calls `mixup` or `cutmix`; raises ParamError if it refuses the images."""
        try:
            return mix(batch, partners=partners, **given)
        except ValueError as error:
            raise ParamError(f"input: {error}") from None

    def _keys(self, numbers: np.ndarray) -> random.Key:
        """Returns random keys, two uint32 [B], for the examples with some numbers, int64 [B]."""
        root = random.fold(random.root_key(self.p.seed), random.text_hash("mixed"))
        return random.fold(random.fold(root, numbers >> 32), numbers)


def _take(batch: LabelledBatch, places: np.ndarray) -> LabelledBatch:
    """Returns copies of the examples at some indices, int [B]."""
    return LabelledBatch(batch.images[places], batch.labels[places])
