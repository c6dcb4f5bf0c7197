"""What each inference engine makes of a checkpoint, release by release."""
