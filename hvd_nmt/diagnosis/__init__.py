"""What must hold before a run starts on some hosts, and how fast it will be. For hvd_nmt.doctor.

hosts           the hosts that were named, and what they answer
link            the agent of a host: it is started, asked, ended
channel         JSON lines between both
probe           what one host says about itself; runs there
planned_run     the run to come: its configuration, and what the hosts say of its data
checks          what must hold on each host: pure functions from answers to checks
equality        what must be the same on all hosts, likewise
network_checks  what must hold of the network, by the answers and by a measurement
measurement     what a step computes, and a real all-reduce between the hosts, timed
prediction      from its speed to step time, run time, verdict and advice
findings        a check, and all that was found, as text and as plain values
"""
