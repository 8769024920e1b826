"""Processes that run jobs, on this machine or on a Ray cluster.

`jobs` has the interface of a job; `worker`, `worker_process` and `local_pool` run jobs here,
`ray_pool`, `ray_cluster`, `ray_driver`, `ray_worker` and `shipping` on a cluster.
"""
