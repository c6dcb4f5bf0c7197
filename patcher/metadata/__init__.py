"""What the files of a checkpoint say, without any engine's opinion."""
