"""A run that finishes without anybody watching, for hvd_nmt.launch.

supervision  the story: hosts are asked, ranks start, end, and start again until the run is done
command      what is to run on every rank, and the run it is about
preflight    what the hosts say before a start, and where its ranks go
ranks_start  one start of the ranks, with the signals that are passed on to it
horovodrun   Horovod's horovodrun with better ends for its ranks; run by its path
aftermath    after a start has ended: no process of it is left, and how far it came
policy       what is done when a start has ended: a pure function
launch_log   `launch.jsonl`
"""
