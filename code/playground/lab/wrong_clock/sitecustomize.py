"""Wrong time of day for any Python with this folder in PYTHONPATH (see `illnesses.wrong_clock`).

libfaketime would do it for any program, but makes `time.sleep` of Python 3.11 and later fail.
"""

import os
import time

real, off = time.time, float(os.environ.get("CLOCK_IS_OFF_BY", "0"))  # s


def wrong() -> float:
    return real() + off


time.time = wrong
