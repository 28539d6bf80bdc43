"""Tune the cells of a sweep: one here, or all on a Ray cluster, with one Ray task for each cell.

    tune_on_ray ── task ──> host 1: tune_on_host
         │      ── task ──> host 2: tune_on_host
         └───── yields each cell when its task has ended

Each host has the resource `measuring`. A cell on the CPU holds 1 of it, because nothing else may
run on its host; a cell on GPUs holds a small share of it, so cells on different GPUs of a host may
run at the same time. Ray queues the tasks and chooses hosts by resources and labels. If a host is
lost or cannot tune, Ray runs the task again.
"""
