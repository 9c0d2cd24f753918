"""Pure protocol engines: bytes in, frames or events out. Hosts do the I/O."""
