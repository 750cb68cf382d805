"""Ranks that would train apart are stopped before they do, on every rank, with a sentence.

Horovod 0.28.1 with tf_keras 2.18 has 14 known ways to train without averaging, or with a wrong
one, and without an error. What stops each of them here:

| case                                             | caught by                                     |
|--------------------------------------------------|-----------------------------------------------|
| 1  GradientTape + apply_gradients                | weights compared after the first step         |
| 2  Keras 3 optimizer                             | tf_keras' compile takes none                  |
| 3  wrapped optimizer not compiled; wrapped later | prove_sums, which asks what the model holds   |
| 4  optimizer loaded from a saved model           | prove_sums                                    |
| 5  size 1 in each process                        | horovod.init, by what the launcher has set    |
| 6  process set without this rank                 | prove_sums                                    |
| 7  local layers, register_local_var              | never called; `sums_of` sums all weights      |
| 8  groups of variables of the same name          | prove_sums                                    |
| 9  unequal loss scales                           | prove_sums; broadcast makes them equal        |
| 10 hvd.join for the tail of an epoch             | cannot occur: nothing calls it (by syntax     |
|                                                  | tree, below); steps are equal (test_batches)  |
| 11 ranks in different epochs                     | cannot occur: one endless stream of global    |
|                                                  | steps, equal on all ranks (test_batches)      |
| 12 op or groups dropped: Sum becomes Average     | prove_sums                                    |
| 13 rank 0 alone restored                         | weights compared before the first step        |
| 14 DistributedGradientTape beside the optimizer  | cannot occur: nothing calls it (syntax tree); |
|                                                  | 1 x 4N = 4 x N would fail (test_step)         |
"""

import ast
from pathlib import Path

import pytest

from hvd_nmt.common.errors import BY_EXIT_CODE, ClusterError, DivergedError
from hvd_nmt.training import cluster, horovod

pytestmark = pytest.mark.both_tensorflows
RANKS = 3
PACKAGE = Path(cluster.__file__).parents[1]


@pytest.fixture(scope="module")
def answers(run_on_ranks, tmp_path_factory):
    """What silent_averaging.py found: check -> one answer per rank."""
    out = tmp_path_factory.mktemp("silent_averaging")
    by_rank = [
        {line["check"]: line for line in lines}
        for lines in run_on_ranks("silent_averaging.py", RANKS, out)
    ]
    return lambda name: [found[name] for found in by_rank]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("right_optimizer_with_loss_scale", {"error": None}),
        # The self-test of a model changes nothing.
        ("right_optimizer_on_the_transformer", {"error": None, "changed": False, "iterations": 0}),
        # Case 1: the optimizer itself is right; the weights are found apart after step 1.
        ("case_01_apply_gradients_of_local_gradients",
         {"self_test": None, "error": "DivergedError", "steps": 1}),
        # Seven gradients in twelve orders. With three ranks the order of additions matters.
        ("sums_do_not_depend_on_arrival", {"different_sums": 1}),
        ("clipping_with_unequal_thread_counts", {"error": None}),
        ("gather_of_unequal_lengths", {"right": True}),
        # Loss scale, its counter, iterations and step are among what is broadcast.
        ("broadcast_reaches_everything_that_is_saved",
         {"equal": True, "named": True, "slots": True, "error": None}),
    ],
)  # fmt: skip
def test_every_rank_finds_what_is_right(answers, name, wanted):
    for answer in answers(name):
        assert answer.items() >= wanted.items(), answer.get("text")


@pytest.mark.parametrize(
    "name",
    [
        "case_03_plain_optimizer",
        "case_06_process_set_without_some_ranks",
        "case_08_groups_of_variables_of_one_name",
        "case_09_unequal_loss_scales",
        "case_12_horovod_tensorflow_drops_op",
        "case_12_average",
    ],
)
def test_gradients_that_do_not_add_up_are_refused_on_every_rank(answers, name):
    for answer in answers(name):
        assert answer["error"] == "DivergedError"
        assert answer["text"].startswith("Gradients do not add up: on rank ")
        assert f"is not the sum over {RANKS} ranks" in answer["text"]


def test_what_is_not_summed_or_not_equal_is_named(answers):
    for answer in answers("case_01_apply_gradients_of_local_gradients"):
        assert answer["text"].startswith("After step 1 the weights")


def test_case_13_the_rank_that_alone_restored_is_named_before_step_1(answers):
    for answer in answers("case_13_restored_on_the_first_rank_only"):
        assert answer["error"] == "DivergedError"
        assert "After step 500 the weights of rank 0 (host0) differ" in answer["text"]


def test_what_horovod_does_silently_is_used_nowhere():
    """Calls on Horovod and its keywords: only `DistributedOptimizer`, once.

    Case 3: what the model holds is what is tested; asking another would prove nothing.
    """
    silent = {"join", "DistributedGradientTape", "register_local_var", "ProcessSet", "groups",
              "backward_passes_per_step", "load_model", "DistributedOptimizer"}  # fmt: skip
    found, tested = [], set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in silent:
                if ast.unparse(node.value) in ("hvd", "hvd_keras"):
                    found.append(f"{path.name}: {ast.unparse(node)}")
            elif isinstance(node, ast.keyword) and node.arg in silent:
                found.append(f"{path.name}: {node.arg}=")
            elif isinstance(node, ast.Call) and "prove_sums" in ast.unparse(node.func):
                tested.add(ast.unparse(node.args[0]))
    # `groups` as a number, to Horovod's optimizer for Keras, which does not drop it.
    assert found == ["horovod.py: hvd_keras.DistributedOptimizer", "horovod.py: groups="]
    assert tested == {"plain", "model.exchange"}


@pytest.fixture
def one_process(monkeypatch):
    """Nothing of a launcher in the environment."""
    for variable in ("HVD_NMT_RANKS", "HOROVOD_SIZE", *horovod._OTHER_LAUNCHERS):
        monkeypatch.delenv(variable, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("variable", "launcher"),
    [("OMPI_COMM_WORLD_SIZE", "mpirun"), ("PMI_SIZE", "mpiexec"), ("SLURM_STEP_NUM_TASKS", "srun")],
)
def test_case_5_processes_that_horovod_does_not_know_of(one_process, variable, launcher):
    one_process.setenv(variable, "4")

    with pytest.raises(ClusterError, match=rf"^{launcher} started 4 processes, but .* train alone"):
        horovod.init()


def test_case_5_another_number_of_ranks_than_asked_for(one_process):
    with pytest.raises(ClusterError, match=r"^The number of ranks is 1 instead of 4"):
        horovod.init(4)

    one_process.setenv("HVD_NMT_RANKS", "2")
    with pytest.raises(ClusterError, match=r"^The number of ranks is 1 instead of 2"):
        horovod.init()


def test_the_summed_gradient_is_exact_per_token(answers):
    """Very unequal shares: averages of any kind, measured in the same way, are far off."""
    for answer in answers("gradients_are_exact_per_token"):
        gradient_error, loss_error = answer["sum"]
        assert gradient_error < 1e-5
        assert loss_error < 1e-6
        assert answer["average_of_sums"] == pytest.approx(1 - 1 / RANKS, rel=1e-4)
        assert answer["average_of_means"] > 0.1


def test_a_single_bit_names_rank_and_host(answers):
    for answer in answers("any_single_bit_of_one_rank_is_named"):
        assert [error["error"] for error in answer["errors"]] == ["DivergedError"] * 3
        assert [error["text"].split(" differ ")[0] for error in answer["errors"]] == [
            "After step 40 the weights of rank 1 (host1)",
            "After step 40 the weights of rank 1 (host1)",
            "After step 40 the weights of rank 0 (host0)",
        ]


def test_of_two_ranks_nobody_knows_which_is_wrong(monkeypatch):
    monkeypatch.setattr(horovod, "gather", lambda value: [["v100a", 1], ["v100b", 2]])
    monkeypatch.setattr(cluster, "_checksum", lambda weights: 1)
    rank = horovod.Rank(0, 2, 0, 1, "v100a")

    with pytest.raises(DivergedError) as raised:
        cluster.require_equal_weights([], 9, rank)

    assert "rank 0 (v100a)" in str(raised.value)
    assert "rank 1 (v100b)" in str(raised.value)


def test_a_fact_that_differs_is_named_with_both_values_and_hosts(answers):
    for answer in answers("facts_that_differ"):
        assert answer["error"] == "ConfigError"
        assert "The precision differs between hosts" in answer["text"]
        assert "float16 on host1" in answer["text"]
        assert "float32 on host0" in answer["text"]
        assert "data hash" not in answer["text"]


def test_an_error_of_one_rank_is_raised_on_all_with_its_host(answers):
    for rank, answer in enumerate(answers("errors_are_shared")):
        *kinds, two_ranks, none = answer["errors"]
        one_each = zip((0, 1, 2, 0, 1, 2), BY_EXIT_CODE.values(), kinds, strict=True)
        for failing, kind, error in one_each:
            where = "" if failing == rank else f"On host{failing}: "
            assert error == {"error": kind.__name__, "text": where + "The disk is full."}
        assert "No space left" in two_ranks["text"]  # the lowest rank's, on all three
        assert two_ranks["text"].startswith("On host1: ") == (rank != 1)
        assert none["error"] is None
