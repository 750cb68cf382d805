"""One run on all its ranks. `hvd_nmt.train` tells the story; these are its parts.

horovod.py      ranks, hosts and collectives; the only module that imports Horovod
devices.py      GPU and thread settings of this rank, and the precision the hardware is good at
cluster.py      before step 1: one data preparation per host, equal hosts, averaging self-test
setup.py        from a configuration to ranks that are ready for step 1
optimizer.py    Adam with one fused kernel per weight, wrapped so that gradients are summed
step.py         the Keras model that `fit` drives: one training step, timed
checkpoints.py  atomic, verified checkpoints that TF1 and TF2 can read
manifest.py     what says which checkpoint is complete, and what it is
weights.py      from checkpoint files to variables
averaging.py    the mean of checkpoints as a run directory of its own
meta_graph.py   the `.meta` file beside a checkpoint
evaluation.py   validation loss and BLEU, shared by all ranks
step_callback.py  the base of callbacks that count steps
callbacks.py    learning rate, log, replica check, evaluation, checkpoints, telemetry
stop_request.py  signals that ask a run to stop
dashboard.py    what TensorBoard shows besides scalars: charts that belong together, HParams
plan.py         what the run is going to do, printed before step 1
run_directory.py  the folder that explains a run, held by one run at a time
"""
