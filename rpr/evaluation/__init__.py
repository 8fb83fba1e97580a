"""Test sets, scores and significance; needs neither TensorFlow nor the rest of rpr.

| module | contents |
| --- | --- |
| `test_sets` | reading lines; sacreBLEU's test sets |
| `metrics` | BLEU, chrF and TER as functions of sufficient statistics |
| `ter` | edit counts of TER, in batches |
| `ratio_metrics` | accuracy, edit distance and perplexity: ratios of two sums |
| `scoring` | scores of whole files with signatures, and a paired test (`rpr score`) |
| `paired_tests` | sacreBLEU's bootstrap and randomization |
| `significance` | arms of several seeds; jackknife, Holm's correction (`rpr report`) |
| `length_checks` | hypotheses that are suspiciously short, long or repetitive |
"""

# The name of each metric in settings, flags and JSON, and in text.
ALL_METRICS = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "accuracy": "accuracy",
               "token_accuracy": "token accuracy", "edit_distance": "edit distance",
               "perplexity": "perplexity", "token_loss": "loss per token"}
LOSS_METRICS = ("perplexity", "token_loss")           # of language models
LOWER_IS_BETTER = ("ter", "edit_distance", *LOSS_METRICS)
