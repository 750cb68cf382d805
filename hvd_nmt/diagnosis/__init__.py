"""What must hold before a run starts on some hosts, and how fast it will be. For hvd_nmt.doctor.

hosts.py       the hosts that were named, and asking all of them at once
probe.py       what one host says about itself; runs on each host
checks.py      what must hold on each host: pure functions from answers to checks
equality.py    what must be the same on all hosts, likewise
table.py       a check, and many of them for a reader
memory.py      parameters, memory and checkpoint size that a configuration will need
allreduce.py   a real all-reduce between the hosts, timed
prediction.py  from its speed to step time, run time, cost, verdict and advice
"""
