"""The texts that agent and user read: functions from values to texts."""
