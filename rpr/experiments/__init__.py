"""Runs and studies: settings, directories, stages, processes and progress. No TensorFlow."""
