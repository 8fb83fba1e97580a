"""Building blocks of attention: pure functions of tensors, and layers with their variables.

Modules: `attention` (dot-product and multi-head attention), `additive` (additive compatibility),
`projections`, `dropout`, `diagonals` (bands of attention matrices), `edges` (labelled edges as
matrices) and `ops` (operations that TensorFlow lacks).
"""
