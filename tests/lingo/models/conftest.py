"""What the tests of layers have, too."""

from tests.lingo.layers.conftest import _without_graph_optimizers, with_weights

__all__ = ["_without_graph_optimizers", "with_weights"]
