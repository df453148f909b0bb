"""Turn classifiers exported elsewhere into graphs like ours; needs onnx, not torch."""
