"""Test sets, scores and significance; needs neither TensorFlow nor the rest of rpr.

| module | contents |
| --- | --- |
| `test_sets` | reading lines; sacreBLEU's test sets |
| `metrics` | BLEU, chrF and TER as functions of sufficient statistics |
| `ter`, `edit_matrices` | edit counts of TER; edit distances in batches |
| `sentence_statistics` | statistics of whole files: in blocks, in parallel, cached |
| `scoring` | scores of systems with signatures, and a paired test (`rpr score`) |
| `paired_tests` | sacreBLEU's bootstrap and randomization |
| `significance` | arms of several seeds; jackknife, Holm's correction (`rpr report`) |
| `length_checks` | hypotheses that are suspiciously short, long or repetitive |
"""
