"""What a report adds to how a run ended: doubts on a run that ended well, its figures in words."""
