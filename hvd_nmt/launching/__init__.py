"""A run that finishes without anybody watching, for hvd_nmt.launch.

supervision   the story: hosts are asked, ranks start, end, and start again until the run is done
command       what is to run on every rank, and the run it is about
preflight     what the hosts say before a start, and where its ranks go
start         one start: agents are told to, and told to end what is left
culprit       who was the first to fail: a pure function of what all hosts told
policy        what is done when a start has ended: likewise
rank_output   which lines of the ranks are seen
stop_signals  SIGTERM, Ctrl-C and a closed terminal
launch_log    `launch.jsonl`

On each host:

agent         the parent of the ranks there
rank_process  one rank: its process, its heartbeat, what it prints
reached       how far a start came
"""
