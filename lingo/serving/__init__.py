"""Serves a trained model over HTTP from one machine, with the URL paths of TensorFlow Serving."""
