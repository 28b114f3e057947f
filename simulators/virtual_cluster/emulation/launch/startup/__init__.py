"""What Python programs that a script starts begin with."""
