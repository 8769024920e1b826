"""Bad input: for each function, each precondition broken in turn in an otherwise valid call."""
