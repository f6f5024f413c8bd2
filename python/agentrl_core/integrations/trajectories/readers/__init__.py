"""Readers of other programs' files, one for each format: records in, chats out, which `from_chats` takes."""
