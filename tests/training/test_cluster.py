"""Ranks that would train apart are stopped before they do, on every rank, with a sentence.

Horovod 0.28.1 with tf_keras 2.18 has 14 known ways to train without averaging, or with a wrong
one, and without an error. What stops each of them here:

| case                                             | caught by                                     |
|--------------------------------------------------|-----------------------------------------------|
| 1  GradientTape + apply_gradients                | weights compared after the first step         |
| 2  Keras 3 optimizer                             | tf_keras' compile takes none                  |
| 3  wrapped optimizer not compiled; wrapped later | check_averaging, which asks the compiled one  |
| 4  optimizer loaded from a saved model           | check_averaging                               |
| 5  size 1 in each process                        | horovod.init, by what the launcher has set    |
| 6  process set without this rank                 | check_averaging                               |
| 7  local layers, register_local_var              | check_averaging                               |
| 8  groups of variables of the same name          | check_averaging                               |
| 9  unequal loss scales                           | check_averaging; broadcast makes them equal   |
| 10 hvd.join for the tail of an epoch             | cannot occur: nothing calls it (by syntax     |
|                                                  | tree, below); steps are equal (test_batches)  |
| 11 ranks in different epochs                     | cannot occur: one endless stream of global    |
|                                                  | steps, equal on all ranks (test_batches)      |
| 12 op or groups dropped: Sum becomes Average     | check_averaging                               |
| 13 rank 0 alone restored                         | weights compared before the first step        |
| 14 DistributedGradientTape beside the optimizer  | cannot occur: nothing calls it (syntax tree); |
|                                                  | 1 x 4N = 4 x N would fail (test_step)         |
"""

import ast
import socket
from pathlib import Path

import pytest

from hvd_nmt.common.errors import BY_EXIT_CODE, ClusterError, DivergedError
from hvd_nmt.training import cluster, horovod, launcher

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


@pytest.mark.parametrize("name", ["right_optimizer", "right_optimizer_with_loss_scale"])
def test_the_right_optimizer_passes(answers, name):
    assert [answer["error"] for answer in answers(name)] == [None] * RANKS


def test_the_self_test_of_a_model_changes_nothing(answers):
    for answer in answers("right_optimizer_on_the_transformer"):
        assert answer["error"] is None
        assert not answer["changed"]
        assert answer["iterations"] == 0


@pytest.mark.parametrize(
    "name",
    [
        "case_03_plain_optimizer",
        "case_03_wrapped_after_compile",
        "case_04_optimizer_loaded_from_a_saved_model",
        "case_06_process_set_without_some_ranks",
        "case_07_one_variable_is_local",
        "case_08_groups_of_variables_of_one_name",
        "case_09_unequal_loss_scales",
        "case_12_horovod_tensorflow_drops_op",
        "case_12_average",
        "two_backward_passes_per_step",
    ],
)
def test_gradients_that_do_not_add_up_are_refused_on_every_rank(answers, name):
    for answer in answers(name):
        assert answer["error"] == "DivergedError"
        assert answer["text"].startswith("Gradients do not add up: on rank ")
        assert f"is not the sum over {RANKS} ranks" in answer["text"]


def test_a_sum_has_the_same_bits_however_its_gradients_arrive(answers):
    """Seven gradients in twelve orders. With three ranks the order of additions matters."""
    for answer in answers("sums_do_not_depend_on_arrival"):
        assert answer["different_sums"] == 1


def test_ranks_with_other_numbers_of_threads_clip_alike(answers):
    for answer in answers("clipping_with_unequal_thread_counts"):
        assert answer["error"] is None, answer["text"]


def test_the_variable_that_is_not_summed_is_named(answers):
    for answer in answers("case_07_one_variable_is_local"):
        assert "on rank 0 (host0) the gradient of second:0 is not" in answer["text"]


def test_case_1_weights_apart_are_found_after_the_first_step(answers):
    for answer in answers("case_01_apply_gradients_of_local_gradients"):
        assert answer["self_test"] is None  # the optimizer itself is right
        assert answer["error"] == "DivergedError"
        assert answer["text"].startswith("After step 1 the weights")
        assert answer["steps"] == 1


def test_case_2_a_keras_3_optimizer_is_not_compiled(answers):
    for answer in answers("case_02_keras_3_optimizer"):
        assert len(answer["errors"]) == 2
        assert "compiled" not in answer["errors"]


def test_case_13_the_rank_that_alone_restored_is_named_before_step_1(answers):
    for answer in answers("case_13_restored_on_the_first_rank_only"):
        assert answer["error"] == "DivergedError"
        assert "After step 500 the weights of rank 0 (host0) differ" in answer["text"]


def test_case_14_a_second_reduction_is_seen_by_no_guard(answers):
    """Why the syntax tree is searched for it, below."""
    for answer in answers("case_14_reduced_by_the_tape_too"):
        assert answer["once"] == RANKS
        assert answer["twice"] == RANKS**2
        assert answer["error"] is None


@pytest.mark.parametrize(
    "name",
    ["join", "DistributedGradientTape", "register_local_var", "ProcessSet", "groups",
     "backward_passes_per_step", "load_model", "DistributedOptimizer"],
)  # fmt: skip
def test_what_horovod_does_silently_is_used_nowhere(name):
    """Calls on Horovod and its keywords: only `DistributedOptimizer`, once."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in ("hvd", "hvd_keras")
                and node.attr == name
            )
            is_keyword = isinstance(node, ast.keyword) and node.arg == name
            if is_call or is_keyword:
                found.append(f"{path.name}:{node.value.id if is_call else name}")
    assert found == (["horovod.py:hvd_keras"] if name == "DistributedOptimizer" else [])


def test_the_compiled_optimizer_is_the_one_that_is_tested():
    """Case 3: asking any other object would prove nothing."""
    arguments = [
        ast.unparse(node.args[0])
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "cluster.check_averaging"
    ]
    assert set(arguments) == {"model.optimizer"}


@pytest.fixture
def one_process(monkeypatch):
    """Nothing of a launcher in the environment."""
    for variable in ("HVD_NMT_RANKS", "HOROVOD_SIZE", *launcher._OTHER_LAUNCHERS):
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
    with pytest.raises(ClusterError, match=r"^4 ranks were asked for and 1 were started"):
        horovod.init(4)

    one_process.setenv("HVD_NMT_RANKS", "2")
    with pytest.raises(ClusterError, match=r"^2 ranks were asked for and 1 were started"):
        horovod.init()


def test_one_process_that_was_meant_to_be_one(one_process):
    """Inside of salloc and sbatch, which say how many tasks srun would start there."""
    one_process.setenv("SLURM_NTASKS", "2")

    rank = horovod.init(1)

    assert (rank.index, rank.size, rank.local_rank, rank.local_size) == (0, 1, 0, 1)
    assert rank.host == socket.gethostname()
    assert rank.is_first
    assert rank.is_first_on_host


def test_the_summed_gradient_is_exact_per_token(answers):
    """Very unequal shares: averages of any kind, measured in the same way, are far off."""
    for answer in answers("gradients_are_exact_per_token"):
        gradient_error, loss_error = answer["sum"]
        assert gradient_error < 1e-5
        assert loss_error < 1e-6
        assert answer["average_of_sums"] == pytest.approx(1 - 1 / RANKS, rel=1e-4)
        assert answer["average_of_means"] > 0.1


def test_equal_weights_pass(answers):
    assert [answer["error"] for answer in answers("equal_weights_pass")] == [None] * RANKS


def test_a_single_bit_names_rank_and_host(answers):
    for answer in answers("any_single_bit_of_one_rank_is_named"):
        assert [error["error"] for error in answer["errors"]] == ["DivergedError"] * 3
        named = [error["text"].split(" differ ")[0] for error in answer["errors"]]
        assert named == [
            "After step 40 the weights of rank 1 (host1)",
            "After step 40 the weights of rank 1 (host1)",
            "After step 40 the weights of rank 0 (host0)",
        ]


def test_of_two_ranks_nobody_knows_which_is_wrong(monkeypatch):
    monkeypatch.setattr(horovod, "gather", lambda value: [["v100a", 1], ["v100b", 2]])
    monkeypatch.setattr(cluster, "weights_checksum", lambda weights: 1)
    rank = horovod.Rank(0, 2, 0, 1, "v100a")

    with pytest.raises(DivergedError) as raised:
        cluster.require_equal_weights([], 9, rank)

    assert "rank 0 (v100a)" in str(raised.value)
    assert "rank 1 (v100b)" in str(raised.value)


def test_broadcast_leaves_nothing_of_a_rank_s_own(answers):
    for answer in answers("broadcast_reaches_everything_that_is_saved"):
        assert answer["equal"]
        assert answer["named"]  # loss scale, its counter, iterations and step are among them
        assert answer["variables"] >= 3 * answer["weights"] + 4
        assert answer["error"] is None


def test_a_fact_that_differs_is_named_with_both_values_and_hosts(answers):
    for answer in answers("facts_that_differ"):
        assert answer["error"] == "ClusterError"
        assert "The precision differs between hosts" in answer["text"]
        assert "float16 on host1" in answer["text"]
        assert "float32 on host0" in answer["text"]
        assert "data hash" not in answer["text"]


def test_equal_facts_are_returned_by_rank(answers):
    wanted = [{"host": f"host{rank}", "size": 3, "none": None} for rank in range(RANKS)]
    assert [answer["facts_by_rank"] for answer in answers("facts_that_agree")] == [wanted] * RANKS


def test_gather_takes_any_length(answers):
    assert all(answer["right"] for answer in answers("gather_of_unequal_lengths"))


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


def test_all_ranks_wait_for_the_last_one(answers):
    for answer in answers("all_wait_for_the_last"):
        others_s = RANKS - 1 - answer["rank"]
        assert answer["late_s"] == pytest.approx(others_s, abs=0.9)
        assert answer["late_s"] >= others_s - 0.5
