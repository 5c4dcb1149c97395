"""Language models that are served: a prompt comes in, tokens go out one by one.

``rest`` reads a request as its API has it (``openai_values``, ``openai_responses``, ``anthropic_messages``,
``studio_generic``) and puts it into the model's ``queue``; in the device process
``process`` runs it with ``program``, ``sampling`` chooses each token and ``stream`` cuts the text of the answer.
"""
