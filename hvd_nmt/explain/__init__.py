"""What a record means: pure functions of a `Run`, without TensorFlow.

intervals        which intervals count, what a mean step is, where the run changes
bottleneck       what bound the steps, and what would make them shorter
step_model       a step as far as it waits for transfers, and what would shorten it
exchange_cost    bytes and seconds of each way to exchange between hosts
between_hosts    what travels between the hosts of a run, and what plain training would take
traffic          what the network cards carried while steps ran
model_flops      floating-point operations that a step needs
machines         step times, GPUs, CPUs, energy
availability     what restarts cost a run
learning         whether the run is trained, whether it overfits
stopping         when a run has learned enough to end before its last step
learning_rate    the learning-rate plot explained
student_t        quantiles for intervals
"""
