"""Inputs, which make the batch of each (seed, step), and the data sources that inputs read."""

from __future__ import annotations

from lingo.data.array_input import ArrayInput, write_arrays
from lingo.data.audio.audio_input import AudioInput
from lingo.data.audio.source import AudioFiles, AudioSource, CsvAudio, JsonlAudio, LibriSpeech
from lingo.data.bucketed_input import BucketedInput
from lingo.data.dataset_input import DatasetInput
from lingo.data.document_input import TextInput
from lingo.data.example_input import ExampleInput
from lingo.data.hugging_face_tokenizer import HuggingFaceTokenizer
from lingo.data.images.coco_input import CocoInput
from lingo.data.images.encoded import EncodedImages
from lingo.data.images.image_file_input import ImageFileInput
from lingo.data.images.image_folder import ImageFolder
from lingo.data.images.image_input import ImageInput
from lingo.data.images.image_records import ImageRecords, TfdsImages
from lingo.data.images.mixed_input import MixedInput
from lingo.data.images.view import CentralView, RandomView, View
from lingo.data.input import Input
from lingo.data.mixture import Mixture
from lingo.data.multi_task_input import MultiTaskInput, TaskInput
from lingo.data.objectives.denoising import PrefixText, SpanCorruption
from lingo.data.objectives.sentinels import OwnSentinelTokenizer, SentinelTokenizer
from lingo.data.pairs.pair import PairSource
from lingo.data.pairs.pair_input import PairInput
from lingo.data.record_source import InstalledSource, RecordSource, TextFiles
from lingo.data.sentence_piece import LearnedPieces, SentencePiece
from lingo.data.sequence_input import SequenceInput
from lingo.data.sources.jsonl import JsonLines
from lingo.data.sources.pair_files import JsonlPairs, TsvPairs
from lingo.data.sources.tfds import TfdsDirectory
from lingo.data.sources.tfrecord import TfRecords
from lingo.data.staged_input import StagedInput
from lingo.data.tables.column import CategoryColumn, Column, DateColumn, NumberColumn
from lingo.data.tables.read import read_table
from lingo.data.tables.table_input import CsvInput, TableInput
from lingo.data.task_schedule import (
    ConstantTasks,
    ExponentialTasks,
    InverseRatioAdaptiveTasks,
    PieceWiseTasks,
    RoundRobinTasks,
    SequentialTasks,
    SigmoidTasks,
    SimpleAdaptiveTasks,
    TaskSchedule,
)
from lingo.data.tensor_input import TensorInput
from lingo.data.tokenizer import ByteTokenizer, CharacterTokenizer, Tokenizer
from lingo.data.word_pieces import LearnedWordPieces, WordPieces

__all__ = [
    "ArrayInput",
    "AudioFiles",
    "AudioInput",
    "AudioSource",
    "BucketedInput",
    "ByteTokenizer",
    "CategoryColumn",
    "CentralView",
    "CharacterTokenizer",
    "CocoInput",
    "Column",
    "ConstantTasks",
    "CsvAudio",
    "CsvInput",
    "DatasetInput",
    "DateColumn",
    "EncodedImages",
    "ExampleInput",
    "ExponentialTasks",
    "HuggingFaceTokenizer",
    "ImageFileInput",
    "ImageFolder",
    "ImageInput",
    "ImageRecords",
    "Input",
    "InstalledSource",
    "InverseRatioAdaptiveTasks",
    "JsonLines",
    "JsonlAudio",
    "JsonlPairs",
    "LearnedPieces",
    "LearnedWordPieces",
    "LibriSpeech",
    "MixedInput",
    "Mixture",
    "MultiTaskInput",
    "NumberColumn",
    "OwnSentinelTokenizer",
    "PairInput",
    "PairSource",
    "PieceWiseTasks",
    "PrefixText",
    "RandomView",
    "RecordSource",
    "RoundRobinTasks",
    "SentencePiece",
    "SentinelTokenizer",
    "SequenceInput",
    "SequentialTasks",
    "SigmoidTasks",
    "SimpleAdaptiveTasks",
    "SpanCorruption",
    "StagedInput",
    "TableInput",
    "TaskInput",
    "TaskSchedule",
    "TensorInput",
    "TextFiles",
    "TextInput",
    "TfRecords",
    "TfdsDirectory",
    "TfdsImages",
    "Tokenizer",
    "TsvPairs",
    "View",
    "WordPieces",
    "read_table",
    "write_arrays",
]
