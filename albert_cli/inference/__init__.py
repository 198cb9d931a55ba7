"""Use a checkpoint: predict labels, encode texts, fill masks, convert it to our layout, export it to ONNX."""
