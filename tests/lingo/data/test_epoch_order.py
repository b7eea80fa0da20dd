"""Orders of epochs depend on seed, epoch and name alone, and favour no example."""

import numpy as np

from lingo.data.epoch_order import EpochOrder, permutation


def test_a_permutation_is_a_function_of_its_arguments():
    base = permutation(50, seed=1, epoch=2, name="rows")
    assert sorted(base) == list(range(50))
    assert base[:6].tolist() == permutation(50, seed=1, epoch=2, name="rows")[:6].tolist()
    for seed, epoch, name in ((2, 2, "rows"), (1, 3, "rows"), (1, 2, "documents")):
        assert (base != permutation(50, seed=seed, epoch=epoch, name=name)).any()


def test_a_permutation_puts_every_item_everywhere_about_equally_often():
    places = np.array([permutation(4, seed=0, epoch=e, name="rows") for e in range(4000)])
    counts = np.array([np.bincount(column, minlength=4) for column in places.T])
    assert np.abs(counts - 1000).max() < 150  # 5.5 standard deviations


def test_numbers_count_on_through_epochs_each_in_an_order_of_its_own():
    order = EpochOrder(5, seed=1, name="rows", shuffle=True)
    indices = order.indices(np.arange(15)).reshape(3, 5)
    for epoch in range(3):
        np.testing.assert_array_equal(
            indices[epoch], permutation(5, seed=1, epoch=epoch, name="rows")
        )
    np.testing.assert_array_equal(order.indices(np.array([14, 3, 9])), indices.ravel()[[14, 3, 9]])
    plain = EpochOrder(5, seed=1, name="rows", shuffle=False)
    assert plain.indices(np.arange(7)).tolist() == [0, 1, 2, 3, 4, 0, 1]
