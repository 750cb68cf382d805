"""One run on all its ranks.

run                 the story, from a configuration to the last checkpoint
setup               from a configuration to ranks that are ready for step 1
horovod             ranks, hosts and collectives; the only module of a rank that imports Horovod
other_launchers     what mpirun and srun tell less than Horovod needs
devices             GPU and thread settings of this rank, and its precision
cluster             data, versions and weights equal on all hosts, and gradients that add up
heartbeat           what a rank does, and until when it may, for its agent to read
exchange            how hosts share what their ranks learn
run_directory       the folder that explains a run, held by one run at a time
plan                what the run is going to do, printed before step 1
step                the Keras model that `fit` drives: one training step, timed
timed_tape          when a rank's own gradients are ready
micro_batches       a rank's share of a step in slices, one after another
slicing             how many slices: as many as the memory of the GPUs asks for
optimizer           Adam with one fused kernel per weight, wrapped so that gradients are summed
moving_average      of the weights
step_callback       the base of callbacks that count the steps of a run
callbacks           learning rate, comparison of replicas, telemetry
step_log            what is logged of the steps
not_finite          what follows NaN: the step is skipped, its sentences named, many end it
save_and_evaluate   whether a run stops, saves or evaluates after a step
saving              checkpoints beside the training, in each directory of the run
host_directories    which hosts have a run directory of their own, and which holds the newest
early_end           why a run ends before its last step
stop                signals that ask a run to stop
evaluation          validation loss and BLEU, shared by all ranks
benchmark           how fast steps are, for `hvd_nmt.bench`
"""
