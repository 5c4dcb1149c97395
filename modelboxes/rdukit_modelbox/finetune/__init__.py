"""``rdukit finetune``: a Hugging Face folder and data in, such a folder out, by the verbs of the model's box."""
