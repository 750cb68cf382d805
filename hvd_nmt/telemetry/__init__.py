"""What the machines did during a run, and what the training reported. Never imports TensorFlow.

- `gpu`      use, memory, power, energy, clock and links of every GPU of this host, through NVML
- `nvml`     the questions that are put to one GPU, each with its answer in our units
- `network`  MB/s each way, link speed and state of every network interface of this host
- `host`     CPU, memory and disk of this host, and the memory of this process tree
- `sampler`  a thread per host that writes one sample per interval to telemetry/<host>.jsonl
- `events`   the run's event store: metrics.jsonl and TensorBoard files, and reading them back
- `steps`    where a training step's time goes: input, computing, the slowest rank, the network
- `tracker`  the run shown in MLflow or Weights & Biases
- `jsonl`    files of one JSON object per line that survive a crash
- `rates`    what turns a counter of bytes into MB/s
"""
