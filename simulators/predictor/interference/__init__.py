"""How much computation and communication slow each other while they run together."""
