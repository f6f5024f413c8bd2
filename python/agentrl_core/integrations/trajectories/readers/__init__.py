"""Readers of other programs' files, one for each format: they convert records to chats for `from_chats`."""
