"""Which weights a pattern freezes, and what is said of one that freezes none."""

import pytest

from hvd_nmt.checkpoints import names
from hvd_nmt.checkpoints.state import weights_by_path
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import ModelConfig
from hvd_nmt.model.transformer import Transformer

PATHS = list(weights_by_path(Transformer(ModelConfig(2, 2, 16, 2, 32), 40)))


def test_a_stack_with_its_last_normalisation() -> None:
    assert names.frozen(PATHS, "") == set()
    encoder = names.frozen(PATHS, "encoder")
    assert encoder == {path for path in PATHS if path.startswith("encoder")}
    assert "encoder_norm/scale" in encoder
    assert names.frozen(PATHS, "decoder") == set(PATHS) - encoder - {"embedding"}


@pytest.mark.parametrize(("patterns", "wanted"), [
    ("embedding", {"embedding"}),
    ("encoder_norm/scale", {"encoder_norm/scale"}),
    ("*/1/attention/qkv", {"encoder/1/attention/qkv", "decoder/1/attention/qkv"}),
    ("encoder/0/attention", {"encoder/0/attention/qkv", "encoder/0/attention/output_kernel"}),
    (" embedding, encoder_norm/* ", {"embedding", "encoder_norm/scale", "encoder_norm/offset"}),
    ("encoder_norm embedding", {"embedding", "encoder_norm/scale", "encoder_norm/offset"}),
])  # fmt: skip
def test_globs_and_lists(patterns: str, wanted: set[str]) -> None:
    assert names.frozen(PATHS, patterns) == wanted


def test_embedding_means_both_where_the_source_has_its_own() -> None:
    paths = [*PATHS, "source_embedding"]
    assert names.frozen(paths, "embedding") == {"embedding", "source_embedding"}
    assert names.frozen(paths, "source_embedding") == {"source_embedding"}


def test_an_unknown_pattern_gets_the_list_and_something_must_be_left() -> None:
    with pytest.raises(ConfigError, match="/atention' matches no weight: use one of ") as caught:
        names.frozen(PATHS, "embedding,encoder/0/atention")
    assert str(caught.value).count("encoder/*/attention/qkv") == 1
    with pytest.raises(ConfigError, match="freezes every weight"):
        names.frozen(PATHS, "embedding,encoder,decoder")
