"""What a multiplexer has beyond an event system: where its events come from, how they come in, what becomes of them."""
