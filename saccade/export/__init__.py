"""Models for other programs: CTranslate2, Hugging Face transformers, ONNX."""
