"""The way from files as people have them to data sets as the training verbs read them, in bounded memory."""
