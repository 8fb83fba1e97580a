"""Building blocks of attention: pure functions of tensors, and layers with their variables.

Modules: `attention` (dot-product, additive and multi-head attention), `projections`, `dropout` and
`ops` (operations that TensorFlow lacks).
"""
