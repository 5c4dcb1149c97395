"""Language models that are served: a prompt comes in, tokens go out one by one.

``rest`` reads a request by its API (``openai_values``, ``openai_responses``, ``anthropic_messages``,
``studio_generic``) and puts it into the model's ``queue``. In the device process ``process`` runs it with ``program``;
``sampling`` chooses each token, and ``stream`` cuts the answer's text.
"""
