"""Record warnings of the package, independent of the speed of the machine."""

import contextlib
import warnings


@contextlib.contextmanager
def recorded_warnings():
    """Record every warning except the one about a blocked event loop, which depends on the machine's speed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", ".* blocked the event loop for more than", RuntimeWarning)
        yield caught
