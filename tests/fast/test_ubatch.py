import numpy as np

from fast._native.ubatch import write_requests, write_requests_of_int64


def test_no_request_is_looked_for_behind_the_last() -> None:
    for write in (write_requests, write_requests_of_int64):
        counts, bounds = np.array([2, 1, 100, 100]), np.zeros(2, np.int64)
        write(counts[:2], np.array([0, 50]), bounds)
        assert bounds.tolist() == [0, 2]
