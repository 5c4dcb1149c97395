"""Speech to text that is served: an upload comes in, the text that is spoken in it goes out.

``rest`` reads a request, ``audio_reader`` has its file decoded in a process of its own (``audio_process``),
``features`` makes spectrograms, and ``transcription`` has the model write the text of one window after another. In the
device process ``loop`` does that with ``rules``; ``description`` is the file next to a checkpoint with the meaning of
tokens.
"""
