"""Trained models in the formats of other programs: safetensors, CTranslate2, SavedModel."""
