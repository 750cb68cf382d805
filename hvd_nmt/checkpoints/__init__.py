"""Checkpoints: written, found, read, averaged, taken apart.

names.py         names of a checkpoint's files, and keys of what is in them
run_files.py     the other files of a run directory; where the data of a run are
manifest.py      a complete checkpoint, and the JSON that says what it is
saver.py         write a checkpoint, complete or not at all, also beside the training
snapshot.py      a copy of what a run saves, which stays as it is meanwhile
background.py    one piece of work beside the training
find.py          which checkpoints a run has, and which of them are undamaged
state.py         what a run saves, by its keys: weights, average, Adam, step
weights.py       from files to variables: a model to use, or a run to go on
meta_graph.py    the `.meta` file: a graph for a process with TensorFlow alone
averaging.py     the mean of several checkpoints, as a checkpoint again
extension.py     a model for a vocabulary that has grown
contents.py      what each byte of a checkpoint is for
size.py          how many bytes a checkpoint will have, from the configuration alone
"""
