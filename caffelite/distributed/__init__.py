"""Training on several processes, called ranks, which share the rows of each batch.

All ranks run the same program on the same data and take the same steps. In a step, a rank computes the loss of its own
rows and its gradient, scaled by the rows' share of the batch's mean. Then all ranks add up their gradients in one
message, together with the loss, the metrics and requests to stop. So each rank has the gradient of the entire batch,
and makes the same update, to the bit. Only BatchNorm and weights need other messages in a step. If a decision depends
on time or a signal, all ranks make it after the same step.

`mpi` defines how ranks communicate, and which rows each of them computes. `allreduce` adds up gradients, loss and
metrics. `sharded_step` is a step on a part of a batch, and `sharded_epochs` makes epochs of such steps. `stop_signal`
stops all ranks after the same step. `process_group` has everything else that ranks do together in training.
`caffelite.mpi` has ranks that communicate over MPI.

The rest of caffelite deals with ranks only in these places:

- `caffelite.mpi.DataParallel` wraps an optimizer and has a process group (`training.process_group.unwrap_optimizer`).
- Training asks its `training.process_group.ProcessGroup` for the step, epochs, evaluation and loop.
- Each step runs with the rows of this rank as `core.shard.current_shard()`. A few Functions use it.
- A replayed step calls Python (`core.python_callback.call_python`) to add up or gather arrays.
"""
