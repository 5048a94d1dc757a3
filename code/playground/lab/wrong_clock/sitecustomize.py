"""Another time of day, for a Python that finds this folder in PYTHONPATH: `illnesses.wrong_clock`.

libfaketime, which does it for any program, makes `time.sleep` of Python 3.11 and later fail.
"""

import os
import time

real, off = time.time, float(os.environ.get("CLOCK_IS_OFF_BY", "0"))  # s


def wrong() -> float:
    return real() + off


time.time = wrong
