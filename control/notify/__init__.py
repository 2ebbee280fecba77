"""Notifications: the outbox is emptied into the channels that the settings name."""
