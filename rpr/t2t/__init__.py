"""tensor2tensor: made to run here, its registry, its flags and its trained models."""
