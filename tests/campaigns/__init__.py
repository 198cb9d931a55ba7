"""Searches for faults that no test covers: damaged files, failing system calls, kills and lost nodes."""

import os

# Most campaigns fork a process that has computed with torch. OpenMP's threads do not exist in a fork, which would wait
# for them forever.
os.environ.setdefault("OMP_NUM_THREADS", "1")
