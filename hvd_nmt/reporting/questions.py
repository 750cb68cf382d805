"""The questions of the report.

A new question is a function from `RunFacts` to `Answer`, in one of the modules `answers_*`, and its
entry in `QUESTIONS`. Its docstring says how the answer is computed; the report prints that, too:

    Question("Which host waits?", answers_time.waiting_host, (plots.step_time,))
"""

from collections.abc import Callable
from dataclasses import dataclass

from hvd_nmt.records.record import Run
from hvd_nmt.reporting import answers_files, answers_learning, answers_network, answers_time, plots
from hvd_nmt.reporting.answer import Answer
from hvd_nmt.reporting.run_facts import RunFacts


@dataclass(frozen=True)
class Question:
    """What people ask about a run."""

    text: str
    answered: Callable[[RunFacts], Answer]
    figures: tuple[Callable[[Run], str], ...] = ()
    """HTML of the figures below the answer; "" without data"""


QUESTIONS = (
    Question("How long did the run take?", answers_time.how_long),
    Question(
        "Is the model fully trained, and how can you tell?", answers_learning.fully_trained,
        (plots.outlook, plots.gradient_norm),
    ),
    Question("Is it overfitting?", answers_learning.overfitting, (plots.loss,)),
    Question("Were the GPUs fully used?", answers_time.gpus_used, (plots.hosts,)),
    Question(
        "Was the network the bottleneck?", answers_network.network_bound, (plots.step_time,)
    ),
    Question(
        "Explain the learning-rate plot from the configuration.", answers_learning.learning_rate,
        (plots.learning_rate,),
    ),
    Question("How big is the training set (MB, lines)?", answers_files.training_set),
    Question(
        "Which files is a TF checkpoint made of, and what is in each?",
        answers_files.checkpoint_files,
    ),
    Question(
        "How big is the checkpoint (MB), and why exactly that size?", answers_files.checkpoint_size
    ),
    Question("How long is an average step?", answers_time.average_step),
    Question(
        "How does step time relate to network use between the hosts?",
        answers_network.step_and_traffic, (plots.against_traffic,),
    ),
)  # fmt: skip
"""questions of the report, in the order of their numbers from 1"""
