"""What a new model of the zoo begins as."""
