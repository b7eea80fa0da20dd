"""Exports of trained models for other programs, such as TensorFlow Serving or Hugging Face."""
