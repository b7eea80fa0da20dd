"""Recordings that clients send to a server: the bytes of WAV or FLAC files become features.

Axes: B recordings, T frames, D features of a frame, L samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lingo.data.audio.waveform import BrokenAudio, check_audio_packages, decode, read_header
from lingo.data.request import BadRequest, OpenSpecs, RequestReader
from lingo.ops.speech.log_mel import LogMel

# samples of all channels, 256 MB in float64: a small FLAC file of silence may hold more
_MAX_VALUES = 1 << 25
_MIN_FRAMES = 16  # the shortest length to which features are padded
_UNLIMITED = float("inf")


class _BadLength(BrokenAudio):
    """A sound recording is too short or too long for the model."""


class AudioRequests(RequestReader):
    """Reads `audio`, string [B], the bytes of recordings, as `features` and `num_frames`.

    `features`, float32 [B, T, D], are 0 in padding; T is a power of two, or `max_frames`.
    """

    inputs: OpenSpecs = {"audio": ((None,), "string")}

    def __init__(
        self,
        front_end: LogMel,
        compute: Callable[[np.ndarray], np.ndarray],
        *,
        max_frames: int,
    ) -> None:
        """`compute` returns the features of samples, float64 [L] -> float32 [T, D].

        Recordings of more than `max_frames` frames are refused. Raises MissingPackage unless the
        packages that decode audio are installed.
        """
        check_audio_packages()
        self._front_end, self._compute, self._max_frames = front_end, compute, max_frames
        self.arrays = {
            "features": ((None, None, front_end.dim), "float32"),
            "num_frames": ((None,), "int32"),
        }

    def read(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        rows: list[np.ndarray] = []
        for number, data in enumerate(values["audio"].tolist()):
            try:
                rows.append(self._compute(self._samples(data)))
            except BrokenAudio as error:
                is_sound = isinstance(error, _BadLength)
                advice = "" if is_sound else ': send a WAV or FLAC file as {"b64": "..."}'
                raise BadRequest(f"audio[{number}]: {error}{advice}") from None
        sizes = np.array([len(row) for row in rows], np.int32)
        length = max(_MIN_FRAMES, 1 << (int(sizes.max()) - 1).bit_length())
        shape = (len(rows), min(length, self._max_frames), self._front_end.dim)
        features = np.zeros(shape, np.float32)
        for to, row in zip(features, rows, strict=True):
            to[: len(row)] = row
        return {"features": features, "num_frames": sizes}

    def _samples(self, data: bytes) -> np.ndarray:
        """Returns the samples of a file, float64 [L], of 1 to `max_frames` frames.

        Raises BrokenAudio for another length before the file is decoded, and as `decode` does.
        """
        header = read_header(data, max_seconds=_UNLIMITED)
        rate = self._front_end.p.sample_rate
        frames = int(self._front_end.num_stacks(header.samples_at(rate)))
        if frames < 1:
            raise _BadLength(f"it is shorter than a frame: it has {header.num_samples:,} samples")
        if frames > self._max_frames:
            raise _BadLength(
                f"its {header.seconds:,.1f} seconds are {frames:,} frames, and the model takes up"
                f" to {self._max_frames:,}: send shorter parts of it"
            )
        if (count := header.num_samples * header.channels) > _MAX_VALUES:
            raise _BadLength(
                f"its {header.channels} channels have {count:,} samples, more than"
                f" {_MAX_VALUES:,}: mix them at {rate:,} samples per second"
            )
        return decode(data, sample_rate=rate, max_seconds=_UNLIMITED)
