"""A trained model behind HTTP on one machine, by the paths of TensorFlow Serving."""
