"""User-visible behaviour, through the real client, of real server processes in every topology."""
