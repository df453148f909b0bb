"""Classifiers that others exported, made into graphs like ours; needs onnx, not torch."""
