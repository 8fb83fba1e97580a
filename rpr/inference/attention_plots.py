"""rpr.inference.attention_plots"""
import os

TITLES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention",
         "cross": "decoder to encoder"}


def draw_attention(weights, source, target, prefix):
    """Writes a picture for each kind of attention: a row a layer, a column a head.

    Args:
      weights: `AttentionWeights` of one sentence.
      source, target: its tokens as text.
      prefix: of the files PREFIX.encoder.png, PREFIX.decoder.png and PREFIX.cross.png.
    """
    os.makedirs(os.path.dirname(prefix) or ".", exist_ok=True)
    for kind, (queries, keys) in {"encoder": (source, source), "decoder": (target, target),
                                  "cross": (target, source)}.items():
        if not len(getattr(weights, kind)):               # a recurrent model has the last one alone
            continue
        figure = _attention_figure(getattr(weights, kind)[:, 0], queries, keys, TITLES[kind])
        path = f"{prefix}.{kind}.png"
        figure.savefig(path + ".part", format="png")
        os.replace(path + ".part", path)


def _attention_figure(weights, queries, keys, title):
    """weights: [layers, heads, queries, keys], queries and keys as text; a matplotlib Figure."""
    from matplotlib.figure import Figure
    layers, heads = weights.shape[:2]
    cell = 0.14                                       # inches a token: room for its label
    wide, high = (max(cell * len(tokens), 0.9) for tokens in (keys, queries))
    label = 0.07 * max(map(len, [*queries, *keys])) + 0.25
    size = heads * (wide + 0.15) + label, layers * (high + 0.35) + label + 0.5
    # At most 12,000 pixels a side: the picture of a long sentence gets smaller, not larger.
    figure = Figure(size, dpi=min(110, 12000 / max(size)), layout="constrained")
    axes = figure.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
    for layer in range(layers):
        for head in range(heads):
            panel = axes[layer, head]
            panel.imshow(weights[layer, head], cmap="Blues", vmin=0, vmax=1, aspect="auto",
                         interpolation="nearest")
            panel.set_title(f"layer {layer}, head {head}", fontsize=7, pad=3)
            panel.tick_params(length=0, labelsize=7)
            panel.tick_params(axis="x", labelrotation=90)
    axes[0, 0].set_xticks(range(len(keys)), [_label(token) for token in keys])
    axes[0, 0].set_yticks(range(len(queries)), [_label(token) for token in queries])
    figure.suptitle(f"{title}: rows look at columns", fontsize=9)
    return figure


def _label(token):
    """A token at most 16 letters long, its blanks shown; a $ does not begin mathematics."""
    token = token.replace(" ", "␣")
    return (token if len(token) <= 16 else token[:15] + "…").replace("$", r"\$")
