"""Other brokers, each behind the `Peer` interface, run with settings that make their promise like ours."""
