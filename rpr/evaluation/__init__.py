"""Test sets, scores and significance; needs no TensorFlow, and of rpr only `rpr.utils`."""

# The name of each metric in settings, flags and JSON, and in text.
ALL_METRICS = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "accuracy": "accuracy",
               "token_accuracy": "token accuracy", "edit_distance": "edit distance",
               "perplexity": "perplexity", "token_loss": "loss per token"}
LOSS_METRICS = ("perplexity", "token_loss")           # of language models
LOWER_IS_BETTER = ("ter", "edit_distance", *LOSS_METRICS)
DIGITS = {"perplexity": 2, "token_loss": 3}           # after the point, in reports; others: 1

LEAST_BREVITY_PENALTY = 0.9                           # below it there is a warning
MOST_CUT = 0.01                                       # share of the hypotheses, above it as well


def length_warnings(sentences: int, empty: int | None, cut: int | None, penalty: float | None,
                    short: int | None = None) -> list[str]:
    """What is wrong with the lengths of a run's translations, one phrase per problem.

    Args:
      sentences: number of hypotheses.
      empty: hypotheses without a word.
      cut: hypotheses that stopped at the length limit.
      penalty: BLEU's brevity penalty.
      short: hypotheses that are not empty and less than half as long as their reference.
    """
    warnings = []
    if empty:
        warnings.append(f"{empty:,} of {sentences:,} hypotheses are empty")
    if cut and cut > MOST_CUT * sentences:
        warnings.append(f"{cut:,} of {sentences:,} hypotheses stop at the length limit")
    if empty and cut and empty + cut > sentences:
        warnings.append("some of these are both: sub-words without text up to the limit, as of a "
                        "model that has hardly been trained or has diverged")
    if penalty is not None and penalty < LEAST_BREVITY_PENALTY:
        warnings.append(f"brevity penalty {penalty:.2f}: the hypotheses are shorter than the "
                        "references"
                        + (f", {short:,} of {sentences:,} by more than half" if short else ""))
    return warnings
