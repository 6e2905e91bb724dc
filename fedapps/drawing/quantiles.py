"""What a chart of many clients shows instead of each of them."""

import numpy as np

MOST = 1000  # of more clients or classes, a chart shows means of hundredths, percentiles or some
HUNDRED = 100


def percentiles(counts: np.ndarray) -> np.ndarray:
    """Return [101, ...]: percentiles 0 to 100 over the first axis, each a number that is there."""
    found: np.ndarray = np.percentile(counts, np.arange(HUNDRED + 1), 0, method="inverted_cdf")
    return found
