"""What the machines did during a run, and what the training reported. Never imports TensorFlow.

- `gpu`      use, memory, power, energy and throttling of every GPU of this host, through NVML
- `network`  MB/s each way, link speed and state of every network interface of this host
- `host`     CPU and memory of this host
- `sampler`  a thread per host that writes one sample per interval to telemetry/<host>.jsonl
- `events`   the run's event store: metrics.jsonl and TensorBoard files, and reading them back
- `steps`    where a training step's time goes: input, computing, the slowest rank, the network
- `tracker`  the run shown in MLflow or Weights & Biases
- `jsonl`    files of one JSON object per line that survive a crash
"""
