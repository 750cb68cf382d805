"""Makes a tiny COMET model of random weights in a folder; runs in COMET's own environment.

python tiny_comet.py FOLDER
"""

import sys
from pathlib import Path

import pytorch_lightning
import torch
import yaml
from comet.models import RegressionMetric
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import XLMRobertaConfig, XLMRobertaModel, XLMRobertaTokenizerFast

WORDS = "the man sees a red dog house is big ein Mann sieht einen Hund Haus groß"
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")

folder = Path(sys.argv[1])
encoder = folder / "encoder"
vocabulary = {word: index for index, word in enumerate((*SPECIAL, *WORDS.split()))}
raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
raw.post_processor = processors.TemplateProcessing(
    single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
)
XLMRobertaTokenizerFast(tokenizer_object=raw).save_pretrained(encoder)
torch.manual_seed(1)
sizes = XLMRobertaConfig(
    vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=66, bos_token_id=0, pad_token_id=1,
    eos_token_id=2,
)  # fmt: skip
XLMRobertaModel(sizes).save_pretrained(encoder)
model = RegressionMetric(
    encoder_model="XLM-RoBERTa", pretrained_model=str(encoder), hidden_sizes=[16],
    layer_norm=False, local_files_only=True,  # it would normalise over all of a batch
)  # fmt: skip
trainer = pytorch_lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
trainer.strategy.connect(model)
(folder / "checkpoints").mkdir()
trainer.save_checkpoint(folder / "checkpoints" / "model.ckpt")
hparams = {**model.hparams, "class_identifier": "regression_metric"}
(folder / "hparams.yaml").write_text(yaml.safe_dump(hparams))
