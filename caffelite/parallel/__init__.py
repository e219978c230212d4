"""Training on several processes, called ranks, which share the rows of each batch.

All ranks run the same program on the same data and make the same steps. In a step, a rank computes the loss of its own
rows, scaled by what they count for in the mean over the batch, and its gradient. The gradients are then added up over
all ranks, in one message with the loss, the metrics and whether any rank wants to stop. So each rank has the gradient
of the whole batch, and makes the same update to the same bits. Nothing else is sent in a step, except by BatchNorm and
by weights. A decision that depends on time or on a signal is made by all ranks after the same step.

`ranks` says what ranks can do together, and which rows each of them computes. `summation` adds up what a step has
computed. `step` is a step on a part of a batch. `stop` is how all ranks stop after the same step. `team` is what else
is done together in a training. `caffelite.mpi` has ranks that talk by MPI.

Ranks come in at these places, and at no others:

- `caffelite.mpi.DataParallel` wraps an optimizer and has a team; `fit` takes both (`training.team.optimizer_and_team`).
- A training asks its team, `training.team.Team`, wherever several processes do something else than one.
- Each step runs with the rows of this rank as `core.rows.rows_here()`, which a few Functions ask.
- A replayed step calls Python (`core.recording.call_python`) where something is added up or gathered.
"""
