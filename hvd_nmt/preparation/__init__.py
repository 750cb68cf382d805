"""Raw parallel text to a prepared data directory: what `hvd_nmt.prepare` does. No TensorFlow here.

- `options`               the options of the command, and the request: all that decides the result
- `stages`                the stages in their order
- `corpora`               the YAML file that names several corpora
- `parts`                 a part (train, dev, test) from raw text to clean text, with its counts
- `copies`                training pairs cut and spelled differently: BPE-dropout, noise
- `noise`                 capitals, typing errors and the like
- `cleaning`              the rules by which training pairs are removed
- `removed`               the file of the removed pairs
- `vocabularies`          the vocabularies of a data directory: learned, or taken as they are
- `subwords`              the joint SentencePiece vocabulary
- `encoding`              clean text to ids
- `quality`               lengths, duplicates, leakage: `quality.json`
- `summary`               what the command prints
- `workers`               work on all cores, results in order
- `datasets`              public data sets, downloaded by their names
- `embedded`              the package's own English-German corpus
"""
