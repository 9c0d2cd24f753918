"""Pure codecs: frames of the client protocol, commands of the bus, and the batch that both carry."""
