"""Hosts that are asked and run ranks: each has an agent, which a transport starts there."""
