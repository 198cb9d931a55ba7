"""Run work in parallel through `concurrent.futures.Executor`: a local process pool, or a Dask cluster (`--cluster`).

The work of a lost worker is repeated once; after that the command fails and names the cause. Results do not depend on
the executor.
"""

from albert_cli.executor.cluster import has_cluster, use_cluster
from albert_cli.executor.items import WorkerLimits, WorkItem, run_items
from albert_cli.executor.local import process_context
from albert_cli.executor.mapping import map_unordered
from albert_cli.executor.stopping import is_stop_requested

__all__ = [
    "WorkItem",
    "WorkerLimits",
    "has_cluster",
    "is_stop_requested",
    "map_unordered",
    "process_context",
    "run_items",
    "use_cluster",
]
