"""What every other room may use; itself it uses none of them.

errors             errors of users in one sentence, and the exit codes
files              writing that a crash cannot spoil, and locks
gradient           bytes of a step's gradients, and of their way around a ring of ranks
horovod_build      what Horovod was built with
progress           how far long work is, on standard error
rank_environment   the environment variables that reach the ranks
spare              a process that has imported what takes long before it is a rank
signals            what SIGTERM and SIGINT do to a command
standard_streams   output that goes on when nobody reads it any more
tensorflow_import  the import of TensorFlow without its noise
units              durations, sizes, shares and counts for people to read
version            which hvd_nmt this is: version, and hash of the code
"""
