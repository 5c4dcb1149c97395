"""Language models that are served: a prompt comes in, tokens go out one by one.

``openai_rest`` reads a request into ``openai_values`` and puts it into the model's ``queue``; in the device process
``process`` runs it with ``program``, ``sampling`` chooses each token and ``stream`` cuts the text of the answer.
"""
