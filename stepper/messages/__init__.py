"""What the agent and the person read: values in, texts out."""
