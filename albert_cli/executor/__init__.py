"""Run work in parallel: in processes of this machine, or on the workers of a Dask cluster (`--cluster`).

`map_unordered` applies one function to many items, such as parts of a text. `run_items` runs work that depends on other
work and saves when it is stopped, such as training runs. Both repeat the work of a lost worker once; if a worker is
lost again, the command fails with the cause. Results do not depend on the number and the kind of workers.
"""

from albert_cli.executor.cluster import has_cluster, use_cluster
from albert_cli.executor.items import WorkerLimits, WorkItem, run_items
from albert_cli.executor.local import process_context
from albert_cli.executor.mapping import map_unordered
from albert_cli.executor.stopping import is_stop_requested, request_stop

__all__ = [
    "WorkItem",
    "WorkerLimits",
    "has_cluster",
    "is_stop_requested",
    "map_unordered",
    "process_context",
    "request_stop",
    "run_items",
    "use_cluster",
]
